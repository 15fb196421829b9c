"""The console sink prints at commit: the first rows and the number of the others."""

from __future__ import annotations

import pyarrow as pa
import pytest

from epochal.connectors import console
from epochal.contracts.backend import SinkPlace
from epochal.contracts.identity import EpochKey, EpochScope, TaskScope
from epochal.errors import OptionError

SCOPE = EpochScope("p", EpochKey("main", 4), 1, None)


def test_rows_are_printed_at_commit(capsys: pytest.CaptureFixture[str]) -> None:
    backend = console.sink(rows=3).make(SinkPlace("out"))
    handles = []
    for subtask in range(3):
        transaction = backend.start(TaskScope(SCOPE, "look", subtask))
        if subtask:
            transaction.write(pa.RecordBatch.from_pydict({"k": ["a\x1b[31m", None], "n": [subtask, 22]}))
        handles.append(transaction.pre_commit())
    assert capsys.readouterr().out == ""
    backend.commit(SCOPE, handles)
    assert capsys.readouterr().out.splitlines() == [
        "look, epoch 4: 4 rows",
        "k       n",
        "──────  ──",
        "a?[31m  1",
        "null    22",
        "a?[31m  2",
        "and 1 more",
    ]


@pytest.mark.claim(
    "docs/concepts/guarantees.md: `console.sink` prints an epoch after its decision, and may print it again after a "
    "crash."
)
def test_a_repeated_commit_prints_the_epoch_again(capsys: pytest.CaptureFixture[str]) -> None:
    backend = console.sink().make(SinkPlace("out"))
    transaction = backend.start(TaskScope(SCOPE, "look", 0))
    transaction.write(pa.RecordBatch.from_pydict({"k": ["a"]}))
    handle = transaction.pre_commit()
    assert capsys.readouterr().out == ""
    for _ in range(2):
        backend.commit(SCOPE, [handle])
        assert "look, epoch 4: 1 row" in capsys.readouterr().out


def test_an_epoch_without_rows_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    backend = console.sink().make(SinkPlace("out"))
    backend.commit(SCOPE, [backend.start(TaskScope(SCOPE, "look", 0)).pre_commit()])
    assert capsys.readouterr().out == ""


def test_handles_stay_small_for_large_rows() -> None:
    backend = console.sink(rows=10_000).make(SinkPlace("out"))
    transaction = backend.start(TaskScope(SCOPE, "look", 0))
    transaction.write(pa.RecordBatch.from_pydict({"text": ["x" * 1000] * 5000}))
    handle = transaction.pre_commit()
    assert handle.rows == 5000
    assert len(handle.encode()) < 8192


def test_invalid_console_options_are_refused() -> None:
    with pytest.raises(OptionError, match="Did you mean 'rows'"):
        console.sink(row=3)
    with pytest.raises(OptionError, match="must be an integer"):
        console.sink(rows=0)
