"""``make figures``: charts like those of the SDG paper's section 6, each measured in a process of its own.

python -m benchmarks.figures                        all, each into its part of RESULTS.md once it is measured
python -m benchmarks.figures state-size recovery    some
python -m benchmarks.figures --quick                in their smallest size, to see that they work; printed only
python -m benchmarks.figures --into /tmp/tried      the page and the charts into this folder, not into RESULTS.md
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from benchmarks import charts
from benchmarks.alone import NotMeasured, run_alone
from benchmarks.machine import LOAD, describe
from benchmarks.report import RESULTS, write_part
from benchmarks.sdg import checkpoints, key_value, page, recovery, straggler, windows
from benchmarks.sdg.figure import Figure

FIGURES: Mapping[str, Callable[[Path, bool], Figure]] = {
    "read-write-ratio": key_value.read_write_ratio,
    "state-size": key_value.state_size,
    "windows": windows.windows,
    "straggler": straggler.straggler,
    "recovery": recovery.recovery,
    "checkpoints": checkpoints.checkpoints,
}
LIMIT_SECONDS = 900
FOUND = "figure.json"

console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.figures", description=__doc__.splitlines()[0])
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=f"some of {', '.join(FIGURES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="the smallest size, to see that it works; printed only")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="where page and charts go, not into RESULTS.md")
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)  # the folder of a process that measures one
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    if unknown := set(options.figures) - set(FIGURES):
        parser.error(f"there is no figure {', '.join(sorted(unknown))}; there are {', '.join(FIGURES)}")
    if options.alone:
        figure = FIGURES[options.figures[0]](options.alone / "work", options.quick)
        (options.alone / FOUND).write_text(json.dumps(figure.encode()))
        return 0
    if (options.into or not options.quick) and find_spec("matplotlib") is None:
        parser.error("charts need the extra figures; `make figures` installs it")
    machine, failed = describe(), []
    for name in options.figures or FIGURES:
        found = measured(name, options.quick)
        if found is None:
            failed.append(name)
            continue
        console.print(page.printed(found))
        if options.into:
            options.into.mkdir(parents=True, exist_ok=True)
            write(name, found, machine, options.into / RESULTS.name, options.into / charts.FOLDER.name)
        elif not options.quick:
            write(name, found, machine)
    if failed:
        console.print(f"[red]Not measured: {', '.join(failed)}[/]")
    return 1 if failed else 0


def measured(name: str, quick: bool) -> Figure | None:
    """``None`` and a message where that has failed."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"epochal-figures-{name}-", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        command = [sys.executable, "-m", "benchmarks.figures", name, "--alone", made, *(["--quick"] * quick)]
        try:
            with console.status(f"[dim]{name}"):
                run_alone(command, folder / "log", LIMIT_SECONDS)
        except NotMeasured as error:
            console.print(f"{name} {error}", style="red", markup=False)
            return None
        console.print(f"{name} [dim]{time.monotonic() - started:.0f} s")
        return Figure.decode(json.loads((folder / FOUND).read_text()))


def write(
    name: str,
    figure: Figure,
    machine: Mapping[str, str],
    results: Path = RESULTS,
    folder: Path = charts.FOLDER,
) -> None:
    """The chart, into ``folder``, and the figure's part of the page ``results``."""
    chart = page.draw(figure, folder)
    measured = f"Measured on {datetime.now(UTC):%Y-%m-%d}; {LOAD}: {machine[LOAD]}."
    write_part("figures", name, page.markdown(figure, chart, measured), list(FIGURES), introduction(machine), results)


def introduction(machine: Mapping[str, str]) -> str:
    """What the section of the page begins with."""
    rows = "\n".join(f"| {name} | {value} |" for name, value in machine.items() if name != LOAD)
    return f"""## Figures of the SDG paper

Written by `make figures`: what section 6 of the paper measures, on one machine and with epochs. A call is answered
when its epoch is committed: it waits for the rest of the epoch in which it came, and for the next one.

| | |
|---|---|
{rows}"""


if __name__ == "__main__":
    sys.exit(main())
