"""Measures for comparing two checkouts. Each runs in a separate process, in the measured checkout.

python -m benchmarks.comparison.measures aggregate FOLDER       writes the numbers to a file in the folder
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import engine, inputs
from benchmarks.measures import aggregate, lookups, small_epoch

FOUND = "numbers.json"
BULK_EPOCHS, SMALL_EPOCHS, LOOKUP_SECONDS = 8, 60, 8


@dataclass(frozen=True)
class Quantity:
    """``rate``: larger values are better; otherwise smaller values."""

    name: str
    unit: str
    rate: bool = False


BULK = Quantity("keyed aggregate", "s/epoch")
SMALL = Quantity("small epoch, p50", "ms")
POINTS = Quantity("point look-ups", "/s", rate=True)
BATCHES = Quantity("batch look-ups", "keys/s", rate=True)

Numbers = Mapping[Quantity, float]


def bulk(folder: Path) -> Numbers:
    """A keyed count and sum of a million rows an epoch, over 200,000 keys."""
    source = inputs.write_files(folder / "input", BULK_EPOCHS, aggregate.ROWS, aggregate.KEYS)
    return {BULK: aggregate.seconds(folder / "epochal", source, BULK_EPOCHS)}


def small(folder: Path) -> Numbers:
    """An epoch of a thousand rows, with a sink, twice a second."""
    source = inputs.write_files(folder / "input", SMALL_EPOCHS, small_epoch.ROWS, small_epoch.KEYS)
    settings = small_epoch.configuration(folder)
    with engine.engine_session(settings) as spark:
        times = small_epoch.epochs(folder, source, SMALL_EPOCHS, spark, settings)
    return {SMALL: median(times[SMALL_EPOCHS // 2 :])}


def look_ups(folder: Path) -> Numbers:
    """Look-ups by key over HTTP, while the application commits an epoch each second."""
    answers = lookups.measured(folder, LOOKUP_SECONDS)
    return {POINTS: answers.points_a_second, BATCHES: answers.batch_keys_a_second}


MEASURES: Mapping[str, Callable[[Path], Numbers]] = {"aggregate": bulk, "small-epoch": small, "look-ups": look_ups}
QUANTITIES = {quantity.name: quantity for quantity in (BULK, SMALL, POINTS, BATCHES)}


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    numbers = MEASURES[name](folder / "work")
    (folder / FOUND).write_text(json.dumps({quantity.name: value for quantity, value in numbers.items()}))


if __name__ == "__main__":
    main()
