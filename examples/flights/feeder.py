"""Writes the flights, day by day, into the folder that the application reads."""

from __future__ import annotations

import threading
from datetime import date
from pathlib import Path

from examples.flights.data import flights_by_day, write_day


class Feeder:
    """Writes the days of 2013 in order, from one thread at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.arrived = 0
        """Number of written flights that arrived; the application ignores others."""
        self.days = 0
        self.last_day: date | None = None
        self._waiting = flights_by_day()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def routes(self) -> list[dict[str, str]]:
        """All pairs of origin and destination in the year."""
        pairs = {pair for _, rows in self._waiting for pair in zip(rows["origin"], rows["destination"], strict=True)}
        return [{"origin": origin, "destination": destination} for origin, destination in sorted(pairs)]

    @property
    def aircraft(self) -> list[dict[str, str]]:
        """All aircraft of the year."""
        tails = {tail for _, rows in self._waiting for tail in rows["tail"].dropna()}
        return [{"tail": tail} for tail in sorted(tails)]

    def feed(self, until: date) -> None:
        """Write all days up to and including ``until``."""
        while self._next_day(until):
            pass

    def start(self, until: date, every: float) -> None:
        """Write one day per ``every`` seconds in the background, up to and including ``until``."""
        self._thread = threading.Thread(target=self._run, args=(until, every), daemon=True)
        self._thread.start()

    @property
    def feeding(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def join(self) -> None:
        """Wait for the end of the background thread."""
        if self._thread is not None:
            self._thread.join()

    def stop(self) -> None:
        self._stop.set()
        self.join()

    def _run(self, until: date, every: float) -> None:
        while self._next_day(until) and not self._stop.wait(every):
            pass

    def _next_day(self, until: date) -> bool:
        if self.days == len(self._waiting) or self._waiting[self.days][0] > until:
            return False
        day, rows = self._waiting[self.days]
        write_day(self.folder, day, rows)
        self.days, self.last_day, self.arrived = self.days + 1, day, self.arrived + int(rows["delay"].notna().sum())
        return True
