"""Rows as JSON lines in one file. Its first line contains the last epoch, so that a commit is one ``os.replace``.

Good for a few thousand rows: each epoch writes the whole file again.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from epochal.backends.spi import EpochScope, Handle, SinkBackend, SinkTransaction, TaskScope
from epochal.errors import Fenced, SchemaError, SinkError
from epochal.pipeline.definitions import SinkDefinition


def sink(path: str) -> SinkDefinition:
    """The sink in a pipeline: ``stream.write("out", one_file.sink("out.jsonl"))``."""
    return SinkDefinition("one-file", lambda place: OneFileBackend(path), {"path": path})


class OneFileBackend(SinkBackend):
    def __init__(self, path: str) -> None:
        self._path = Path(os.path.abspath(path))

    @property
    def kind(self) -> str:
        return "one-file"

    @property
    def target(self) -> str:
        return f"one-file:{self._path}"

    def check(self, schema: pa.Schema) -> None:
        for field in schema:
            if pa.types.is_binary(field.type):
                raise SchemaError(f"{self.target}: JSON cannot hold column {field.name!r}. Cast it, or leave it out.")

    def start(self, task: TaskScope) -> OneFileTransaction:
        return OneFileTransaction(self._staging(task.epoch), task)

    def recover(self, epoch: EpochScope) -> None:
        with self._explained("take over"):
            done = self._read()[0]
            if done.get("attempt", 0) > epoch.attempt:
                raise Fenced(f"{self.target}: attempt {done['attempt']} has taken over.")
            if done.get("epoch", 0) > epoch.epoch:
                raise SinkError(f"{self.target} is ahead of the application's state. Restore the state.")
            self._replace({"epoch": done.get("epoch", 0), "attempt": epoch.attempt}, self._read()[1])

    def commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        with self._explained(f"commit epoch {epoch.epoch}"):
            done, lines = self._read()
            if done.get("attempt", 0) > epoch.attempt:
                raise Fenced(f"{self.target}: attempt {done['attempt']} has taken over.")
            if done.get("epoch", 0) < epoch.epoch:
                for handle in sorted(handles, key=lambda handle: handle.subtask):
                    lines += (self._staging(epoch) / handle.payload["staged"]).read_text().splitlines()
                self._replace({"epoch": epoch.epoch, "attempt": epoch.attempt}, lines)
        self.abort(epoch, handles)

    def abort(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        with self._explained(f"tidy up epoch {epoch.epoch}"):
            for handle in handles:
                (self._staging(epoch) / handle.payload["staged"]).unlink(missing_ok=True)

    def sweep(self, epoch: EpochScope, keep: Sequence[Handle]) -> int:
        kept = {handle.payload["staged"] for handle in keep}
        removed = 0
        with self._explained(f"sweep epoch {epoch.epoch}"), suppress(FileNotFoundError):
            for path in self._staging(epoch).iterdir():
                number, attempt, _ = path.name.split("-", 2)
                if int(number) == epoch.epoch and int(attempt) <= epoch.attempt and path.name not in kept:
                    path.unlink(missing_ok=True)
                    removed += 1
        return removed

    def _staging(self, epoch: EpochScope) -> Path:
        return self._path.with_name(f"{self._path.name}.staged") / epoch.branch

    def _read(self) -> tuple[dict[str, Any], list[str]]:
        if not self._path.exists():
            return {}, []
        first, *lines = self._path.read_text().splitlines()
        return json.loads(first), lines

    def _replace(self, done: dict[str, Any], lines: Sequence[str]) -> None:
        draft = self._path.with_name(f".{self._path.name}.{uuid.uuid4().hex}")
        try:
            with draft.open("w") as file:
                file.writelines(f"{line}\n" for line in (json.dumps(done), *lines))
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, self._path)
        finally:
            draft.unlink(missing_ok=True)

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SinkError(f"{self.target}: could not {what}: {error}. Check the disk; it is tried again.") from error


class OneFileTransaction(SinkTransaction):
    def __init__(self, staging: Path, task: TaskScope) -> None:
        self._task = task
        self._staged = staging / f"{task.epoch.epoch}-{task.epoch.attempt}-{task.subtask}-{uuid.uuid4().hex}"
        self._rows: list[str] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows += map(partial(json.dumps, default=str), batch.to_pylist())

    def pre_commit(self) -> Handle:
        text = "".join(f"{row}\n" for row in self._rows)
        self._staged.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self._staged.open("x") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise SinkError(f"{self._staged} could not be written: {error}. The epoch is run again.") from error
        return Handle(
            owner=self._task.owner,
            subtask=self._task.subtask,
            rows=len(self._rows),
            bytes=len(text.encode()),
            payload={"staged": self._staged.name},
        )

    def discard(self) -> None:
        with suppress(OSError):
            self._staged.unlink(missing_ok=True)
