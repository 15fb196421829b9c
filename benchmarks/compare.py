"""``make bench-compare REF=..``: compare the speed of this checkout and another commit, measured alternately.

python -m benchmarks.compare main~5                     all measures, in three rounds: about ten minutes
python -m benchmarks.compare main~5 --rounds 5 --measures small-epoch
python -m benchmarks.compare --history                  previous comparisons

The exit code is 1 if a quantity is more than 10 % slower, and 2 if a measure failed. Results of a clean checkout on a
quiet machine are added to ``history.jsonl``, to be committed.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.alone import NotMeasured, run_alone
from benchmarks.comparison import history
from benchmarks.comparison.checkouts import Checkout, other_checkout, same_libraries, this_checkout
from benchmarks.comparison.history import Comparison
from benchmarks.comparison.measures import FOUND, MEASURES, QUANTITIES
from benchmarks.comparison.verdict import Compared
from benchmarks.machine import LOAD, describe, is_quiet
from epochal.errors import EnvironmentProblem

ROUNDS = 3
LIMIT_SECONDS = 300

console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__.splitlines()[0])
    parser.add_argument("reference", nargs="?", metavar="REF", help="the commit to compare this checkout with")
    parser.add_argument(
        "--rounds",
        type=int,
        default=ROUNDS,
        help=f"number of rounds, each of which measures both commits once; default: {ROUNDS}",
    )
    parser.add_argument("--measures", nargs="+", choices=list(MEASURES), default=list(MEASURES), metavar="MEASURE")
    parser.add_argument("--history", action="store_true", help="print the previous comparisons, without measuring")
    parser.add_argument(
        "--own-benchmarks",
        action="store_true",
        help="measure REF with its own benchmarks: required if modules that they import were moved since",
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    if options.history:
        return _print_history()
    if options.reference is None:
        parser.error("no commit to compare this checkout with; for example make bench-compare REF=main~5")
    if options.rounds < 1:
        parser.error("--rounds must be 1 or more")
    machine = describe()
    try:
        with other_checkout(options.reference, own_benchmarks=options.own_benchmarks) as other:
            this = this_checkout()
            console.print(f"{this.name} against {other.name}")
            if not same_libraries(this, other):
                console.print(
                    "[yellow]The locked libraries differ: both commits are measured with those of this checkout.[/]"
                )
            if not is_quiet(machine):
                console.print(
                    f"[yellow]Other processes use the machine, so the results may be wrong: {machine[LOAD]}[/]"
                )
            found = compared(this, other, options.measures, options.rounds)
    except (EnvironmentProblem, NotMeasured) as problem:
        console.print(str(problem), style="red", markup=False)
        return 2
    console.print(_table(found, other.name, this.name))
    if this.changed or not is_quiet(machine):
        why = "the checkout has changes" if this.changed else f"the load was {machine[LOAD]}"
        console.print(f"Not added to the history: {why}.")
    else:
        history.add(Comparison(f"{datetime.now(UTC):%Y-%m-%d}", this.commit, other.commit, machine, found))
    return 1 if any(each.verdict == "slower" for each in found) else 0


def compared(this: Checkout, other: Checkout, measures: Sequence[str], rounds: int) -> list[Compared]:
    """Run each measure for both commits in each round, in alternating order. Raises ``NotMeasured``."""
    found: dict[str, dict[Checkout, list[float]]] = {}
    for turn in range(rounds):
        for name in measures:
            for checkout in (this, other) if turn % 2 else (other, this):
                with console.status(f"[dim]round {turn + 1}, {name}, {checkout.name}"):
                    numbers = measured(name, checkout)
                for quantity, value in numbers.items():
                    found.setdefault(quantity, {this: [], other: []})[checkout].append(value)
    return [
        Compared(name, QUANTITIES[name].unit, QUANTITIES[name].rate, sides[other], sides[this])
        for name, sides in found.items()
    ]


def measured(name: str, checkout: Checkout) -> Mapping[str, float]:
    """Measured values by name of the quantity. Raises ``NotMeasured``."""
    with tempfile.TemporaryDirectory(prefix=f"epochal-compare-{name}-", ignore_cleanup_errors=True) as folder:
        command = [str(checkout.python), "-m", "benchmarks.comparison.measures", name, folder]
        try:
            run_alone(command, Path(folder) / "log", LIMIT_SECONDS, checkout.folder)
        except NotMeasured as error:
            raise NotMeasured(f"{name} of {checkout.name} {error}") from None
        numbers: dict[str, float] = json.loads((Path(folder) / FOUND).read_text())
        return numbers


def _table(found: Sequence[Compared], before: str, now: str) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 2))
    for name in ("", before, now, "time ratio", ""):
        table.add_column(name, justify="left" if not name else "right")
    for each in found:
        table.add_row(*history.cells(each), style="red" if each.verdict == "slower" else None)
    return table


def _print_history() -> int:
    for comparison in history.comparisons():
        console.print(f"{comparison.on}, on {comparison.machine['processor']}, {comparison.machine['cores']} cores")
        console.print(_table(comparison.found, comparison.against[:10], comparison.commit[:10]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
