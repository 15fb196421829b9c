"""Invariants after a history, of each application and of all operations."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TRACE = """
CREATE TABLE availability_trace (
    id bigserial PRIMARY KEY, at timestamptz DEFAULT clock_timestamp(), what text, key text, before text, after text
);
CREATE FUNCTION availability_trace() RETURNS trigger AS $$
BEGIN
    IF TG_TABLE_NAME = 'operations' THEN
        IF TG_OP = 'INSERT' OR OLD.state <> NEW.state THEN
            INSERT INTO availability_trace (what, key, before, after) VALUES
                ('operation', NEW.id, CASE TG_OP WHEN 'INSERT' THEN NULL ELSE OLD.state END, NEW.state);
        END IF;
    ELSIF TG_OP = 'INSERT' OR OLD.state <> NEW.state THEN
        INSERT INTO availability_trace (what, key, before, after) VALUES
            ('epoch', NEW.branch || '/' || NEW.epoch, CASE TG_OP WHEN 'INSERT' THEN NULL ELSE OLD.state END, NEW.state);
    END IF;
    RETURN NULL;
END $$ LANGUAGE plpgsql;
CREATE TRIGGER trace AFTER INSERT OR UPDATE ON operations FOR EACH ROW EXECUTE FUNCTION availability_trace();
CREATE TRIGGER trace AFTER INSERT OR UPDATE ON epochs FOR EACH ROW EXECUTE FUNCTION availability_trace();
"""
"""Records every change of state, including those that later changes overwrite."""
STEPS = {("started", "prepared"), ("prepared", "committed"), ("started", "aborted")}


@dataclass(frozen=True)
class Journal:
    """The journal of all drivers of an application."""

    lines: Sequence[Mapping[str, Any]]

    @classmethod
    def read(cls, folder: Path) -> Journal:
        lines = []
        with suppress(FileNotFoundError):
            for line in (folder / "journal").read_text().splitlines():
                with suppress(ValueError):  # a killed driver may have left an incomplete line
                    lines.append(json.loads(line))
        return cls(lines)

    def of(self, what: str) -> list[Mapping[str, Any]]:
        return [line for line in self.lines if line["what"] == what]

    @property
    def committed(self) -> set[int]:
        return {line["epoch"] for line in self.of("committed")}


@dataclass(frozen=True)
class Application:
    """``epochs``: state and manifest. ``steps``: changes of these states. ``sink``: visible content by epoch."""

    attempts: Sequence[Any]
    epochs: Mapping[int, tuple[str, str | None]]
    steps: Sequence[tuple[str, str, str]] = ()
    sink: Mapping[int, str] = field(default_factory=dict)

    @property
    def committed(self) -> dict[int, str | None]:
        return {epoch: sha256 for epoch, (state, sha256) in self.epochs.items() if state == "committed"}

    def problems(self, journal: Journal, killed: int) -> Iterator[str]:
        """``killed``: the number of its drivers that the history killed."""
        if len(self.attempts) != killed + 1:
            yield f"it had {len(self.attempts)} attempts, and {killed} drivers were killed: {self.attempts}"
        if len(journal.of("started")) != killed + 1:
            yield f"{len(journal.of('started'))} drivers were started, and {killed} killed"
        yield from (f"a driver has ended: {line['message']}" for line in journal.of("ended"))
        yield from (f"epoch {line['epoch']} has other content in the sink" for line in journal.of("other content"))
        for epoch, (state, _) in self.epochs.items():
            if state not in ("committed", "aborted"):
                yield f"epoch {epoch} stays {state}"
        committed = self.committed
        for line in journal.of("prepared"):
            if committed.get(line["epoch"]) != line["sha256"]:
                yield f"epoch {line['epoch']} was prepared as {line['sha256']}, and is {committed.get(line['epoch'])}"
        yield from (f"epoch {epoch} was committed, and is lost" for epoch in journal.committed - committed.keys())
        if self.sink != committed:
            yield f"the sink shows {self.sink}, the catalog has {committed}"
        for key, before, after in self.steps:
            if (before, after) not in STEPS:
                yield f"epoch {key} went from {before} to {after}"


@dataclass(frozen=True)
class Operations:
    """``rows``: kind, state and error by id. ``steps``: changes of these states. ``savepoints``: by application."""

    rows: Mapping[str, tuple[str, str, Any]]
    steps: Sequence[tuple[str, str, str]]
    savepoints: Mapping[str, set[str]]

    def problems(
        self, begun: Sequence[str], savepoints: Mapping[str, Sequence[str]], tolerated: str | None = None
    ) -> Iterator[str]:
        """``begun`` and ``savepoints`` were confirmed to a client. Failed operations are accepted if their error
        contains ``tolerated``."""
        ends = Counter(key for key, _, _ in self.steps)
        yield from (f"operation {id} was begun, and is lost" for id in begun if id not in self.rows)
        for id, (kind, state, error) in self.rows.items():
            excuses = [tolerated] if tolerated else []
            if kind == "savepoint" and id not in begun:
                excuses.append("name-taken")  # a call repeated after a lost answer
            excused = state == "failed" and any(excuse in str(error) for excuse in excuses)
            if ends[id] > 1 or (state != "succeeded" and not excused):
                yield f"operation {kind} {id} has ended {ends[id]} times, and is {state}: {error}"
        for name, names in savepoints.items():
            if missing := set(names) - self.savepoints.get(name, set()):
                yield f"{name} has lost its savepoints {sorted(missing)}"


class Catalog:
    """Reads the final state from the catalog."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def application(self, name: str, folder: Path) -> Application:
        branch, execution = self._select("SELECT branch, execution FROM applications WHERE name = %s", name)[0]
        rows = self._select("SELECT epoch, state, manifest_sha256 FROM epochs WHERE branch = %s", branch)
        query = "SELECT number, state, failure FROM attempts WHERE execution = %s ORDER BY number"
        return Application(
            attempts=self._select(query, execution),
            epochs={epoch: (state, sha256) for epoch, state, sha256 in rows},
            steps=self._steps("epoch", f"{branch}/%"),
            sink={int(file.name): file.read_text() for file in (folder / "sink").iterdir()},
        )

    def operations(self) -> Operations:
        savepoints: dict[str, set[str]] = {}
        query = "SELECT a.name, s.name FROM savepoints s JOIN applications a ON a.id = s.application"
        for application, name in self._select(query):
            savepoints.setdefault(application, set()).add(name)
        rows = {row[0]: row[1:] for row in self._select("SELECT id, kind, state, error FROM operations")}
        return Operations(rows, self._steps("operation", "%"), savepoints)

    def running(self) -> list[str]:
        rows = self._select("SELECT kind, id, progress FROM operations WHERE state = 'running'")
        return [f"{kind} {id} ({progress})" for kind, id, progress in rows]

    def _steps(self, what: str, key: str) -> list[Any]:
        query = "SELECT key, before, after FROM availability_trace WHERE what = %s AND key LIKE %s"
        return self._select(f"{query} AND before IS NOT NULL ORDER BY id", what, key)

    def _select(self, query: str, *values: object) -> list[Any]:
        return list(self._connection.execute(query, values or None).fetchall())
