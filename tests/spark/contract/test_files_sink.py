"""The files sink satisfies the contract of sinks in each of its formats."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet
import pytest

from epochal.backends.files import FilesBackend
from epochal.contracts.backend import SinkBackend
from epochal.testing.contract import (
    DegradedSinkHarness,
    FileAnswers,
    Losses,
    LostAnswers,
    SinkBackendContract,
    SinkHarness,
    StepAnswers,
)


class Folder(SinkHarness):
    """A folder, read without Epochal. Files that are not hidden are visible."""

    def __init__(self, path: Path, format: str) -> None:
        self.path, self.format = path, format

    def make(self) -> SinkBackend:
        return FilesBackend(str(self.path), self.format)

    def visible(self) -> list[dict[str, object]]:
        return [row for file in sorted(self.path.glob(f"[!_.]*/[!_.]*.{self.format}")) for row in self._read(file)]

    def leftovers(self) -> list[str]:
        return [str(path) for path in self.path.glob("_staging/**/*") if path.is_file() or path.name.startswith("e")]

    def _read(self, file: Path) -> list[dict[str, object]]:
        match self.format:
            case "parquet":
                rows: list[dict[str, object]] = pyarrow.parquet.read_table(file).to_pylist()
                return [{name: value for name, value in row.items() if name != "epoch"} for row in rows]
            case "csv":
                options = pyarrow.csv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False)
                table: list[dict[str, object]] = pyarrow.csv.read_csv(file, convert_options=options).to_pylist()
                return table
            case _:
                return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
@pytest.mark.claim("Thesis, 4.1.4")
@pytest.mark.claim("docs/concepts/guarantees.md: each epoch as a whole, once, after the commit decision")
class TestFilesSink(SinkBackendContract):
    @pytest.fixture
    def harness(self, tmp_path: Path, format: str) -> SinkHarness:
        return Folder(tmp_path / "out", format)


@pytest.mark.parametrize("answers", [FileAnswers(), StepAnswers()], ids=["files", "steps"])
class TestFilesSinkDegraded(SinkBackendContract):
    """Every file operation, or every step, loses its result. Calls are repeated by other processes."""

    @pytest.fixture
    def harness(self, tmp_path: Path, answers: LostAnswers) -> SinkHarness:
        return DegradedSinkHarness(Folder(tmp_path / "out", "json"), Losses(answers))
