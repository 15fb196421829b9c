"""What ``dev`` does each time the file is saved, and how it notices."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from rich.rule import Rule
from rich.text import Text
from watchfiles import watch

from epochal.cli.failures import sentence, unexpected
from epochal.cli.local_run import authors_errors
from epochal.cli.output import Output
from epochal.cli.sample import Sample, sample_view, take_sample
from epochal.contracts.configuration import Configuration, Parameters
from epochal.errors import EpochalError
from epochal.pipeline.artifact import load

LOOK_SECONDS = 1.0
"""So often the file is looked at, whatever the system says: some file systems say nothing."""


@dataclass(frozen=True)
class Development:
    """One file, run on a sample of ``sample`` rows of each source; ``rows`` of each result are printed."""

    file: Path
    parameters: Parameters
    rows: int
    sample: int
    spark: SparkSession
    configuration: Configuration
    output: Output

    def run(self) -> bool:
        """Whether it ran. What was wrong is printed, and never raised."""
        began = time.monotonic()
        try:
            with self.output.busy(f"Running {self.file.name} on a sample"), authors_errors():
                taken = self._take()
        except EpochalError as error:
            self._failed(sentence(error), error.slug)
            return False
        except Exception as error:  # noqa: BLE001 the author is about to mend it, and the loop goes on
            self._failed(unexpected(error), EpochalError.slug)
            return False
        self._ran(taken, time.monotonic() - began)
        return True

    def _take(self) -> Sample:
        artifact = load(self.file)
        artifact.ship()
        return take_sample(artifact.graph(self.parameters), self.sample, self.spark, self.configuration)

    def _ran(self, taken: Sample, seconds: float) -> None:
        if self.output.as_json:
            self.output.line(
                {
                    "outputs": {name: table.slice(0, self.rows).to_pylist() for name, table in taken.outputs.items()},
                    "states": {name: table.slice(0, self.rows).to_pylist() for name, table in taken.states.items()},
                    "waited_for": taken.waited_for,
                }
            )
            return
        self.output.results.print(Rule(f"{time.strftime('%H:%M:%S')}, {seconds:.1f} s", style="dim", align="left"))
        self.output.results.print(sample_view(taken, self.rows))

    def _failed(self, text: str, slug: str) -> None:
        if self.output.as_json:
            self.output.line({"error": {"type": slug, "message": text}})
        self.output.notes.print(Text.assemble(("error: ", "bold red"), text), soft_wrap=True)


def saved(file: Path) -> Iterator[None]:
    """Once at the beginning, and then each time the file has other contents; none is missed while one is worked on."""
    before: bytes | None = None
    first = True
    folder = file.absolute().parent
    looks = watch(
        folder if folder.is_dir() else Path.cwd(),
        watch_filter=lambda _change, path: Path(path).name == file.name,
        recursive=False,
        debounce=200,
        rust_timeout=int(LOOK_SECONDS * 1000),
        yield_on_timeout=True,
    )
    while True:
        now = _contents(file)
        # While an editor replaces the file it is not there for a moment.
        if first or (now is not None and now != before):
            first, before = False, now
            yield
        else:
            next(looks)


def _contents(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError:
        return None
