"""Upgrades of a running application with each kind of edit: no wrong number unless the difference was accepted by name.

Rows arrive between the steps. The expected numbers are a batch computation in plain Python: the rows of each period,
with the meaning that the version of that period gives them.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import count
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from epochal.client import Client
from tests.waiting import eventually

if TYPE_CHECKING:
    from epochal.testing.servers.control_plane import ControlPlane
    from tests.service.cli.conftest import Answer, CommandLine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
PERIOD = timedelta(minutes=20)
"""Event time from one file to the next: windows of an hour are open while versions change."""


class Row(NamedTuple):
    id: int
    k: str
    v: int
    w: int
    at: datetime


EXPRESSIONS: Mapping[str, Callable[[Row], Any]] = {
    "*": lambda row: 1,
    "v": lambda row: row.v,
    "w": lambda row: row.w,
    "v * 100": lambda row: row.v * 100,
    "w > 3": lambda row: row.w > 3,
    "true": lambda row: True,
    "id": lambda row: row.id,
    "id % 7": lambda row: row.id % 7,
    "substr(k, 1, 1)": lambda row: row.k[0],
    "substr(k, 2, 1)": lambda row: row.k[1],
}
"""Spark's expressions of all versions, in plain Python."""
ONE: Mapping[str, Callable[[Row], Any]] = {"count": lambda row: 1}
MERGES: Mapping[str, Callable[..., Any]] = {
    "count": lambda *values: sum(values),
    "sum": lambda *values: sum(values),
    "min": min,
    "max": max,
}
CALL = re.compile(r"(\w+)\(([^)]*)\)")


@dataclass(frozen=True)
class Version:
    """What the author changes. Each text is in the pipeline's code, and computed in :class:`Batch`."""

    totals: Mapping[str, str] = field(
        default_factory=lambda: {
            "lo": "min(v)",
            "hi": "max(v)",
            "n": "count(*)",
            "total": "sum(v)",
            "r": "sum(v) / count(w)",
        }
    )
    where: str = "true"
    key: str = "substr(k, 1, 1)"
    hours: str = "sum(v)"
    score: str = "v"
    same: str = "id"
    big: str = "v"
    mark: str = "first"
    code: str | None = None
    """The pipeline in another spelling with the same meaning."""

    def with_totals(self, **texts: str | None) -> Version:
        merged = {**self.totals, **texts}
        return replace(self, totals={name: text for name, text in merged.items() if text is not None})

    def text(self) -> str:
        aggregates = ", ".join(f"{name}={text!r}" for name, text in self.totals.items())
        verbs = "" if self.where == "true" else f".where({self.where!r})"
        values = {name: getattr(self, name) for name in ("key", "hours", "score", "same", "big", "mark")}
        return Template(self.code or CODE).substitute(values, aggregates=aggregates, verbs=verbs)


CODE = """
from pydantic import BaseModel
from epochal import KeyedProcess, Pipeline, ValueState, tumbling
from epochal.connectors import files


class Parameters(BaseModel):
    input: str
    output: str


class Numbered(KeyedProcess):
    seen = ValueState("n bigint")
    output = "k string, id bigint, n bigint, mark string"
    order_by = "id"

    def process(self, key, rows, ctx):
        for row in rows:
            n = (self.seen.get() or 0) + 1
            self.seen.set(n)
            yield key.k, row.id, n, "$mark"


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("accepted")

    def out(name, mode="append"):
        return files.sink(f"{parameters.output}/{name}", format="json", mode=mode)

    schema = "id bigint, k string, v bigint, w bigint, at timestamp"
    rows = pipeline.read("rows", files.source(parameters.input, format="json", schema=schema))
    keyed = rows.with_columns(g="$key")$verbs.key_by("g")
    keyed.aggregate("totals", $aggregates).write("totals", out("totals", "updates"))
    timed = rows.with_watermark("at", "0 seconds")
    hours = timed.key_by("k").window(tumbling("1 hour")).aggregate("hours", n="count(*)", total="$hours")
    hours.write("hours", out("hours"))
    best = rows.select("k", "id", "$score AS score").key_by("k").top(2, by="score", name="best")
    best.write("best", out("best", "updates"))
    once = rows.with_columns(same="$same").drop_duplicates("same", name="once")
    once.write("once", out("once"))
    big = rows.where("v >= 50").select("k", "id AS other", "$big AS big", "at AS big_at")
    small = rows.where("v < 50").select("k", "id", "at AS small_at").with_watermark("small_at", "0 seconds")
    pairs = small.join(big.with_watermark("big_at", "0 seconds"), on="k", within=("-30 minutes", "30 minutes"),
                       name="pairs")
    pairs.write("pairs", out("pairs"))
    rows.key_by("k").process(Numbered, name="numbered").write("numbered", out("numbered"))
    return pipeline
"""

SPELLED = [
    # independent verbs in another order, a helper column that has another name, and one that nothing reads
    ('keyed = rows.with_columns(g="$key")$verbs', 'keyed = rows$verbs.with_columns(unread="v + 1", g="$key")'),
    ('rows.select("k", "id", "$score AS score")', 'rows.with_columns(s="$score").select("k", "id", "s AS score")'),
    ('.where("v >= 50")', '.where("((V) >= (50)) /* large */")'),
    ('n="count(*)", total="$hours"', 'n="COUNT(1)", total="($hours)"'),
]


@dataclass
class Batch:
    """The numbers that a batch computation gives, period by period."""

    totals: dict[str, dict[str, dict[int, Any]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(dict)))
    hours: dict[tuple[str, datetime], list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    scores: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    once: dict[Any, int] = field(default_factory=dict)
    rows: list[tuple[Row, int]] = field(default_factory=list)
    numbered: list[tuple[str, int, int, str]] = field(default_factory=list)
    touched: set[str] = field(default_factory=set)
    """The groups of ``totals`` that had rows in the last period."""

    def add(self, version: Version, rows: list[Row]) -> None:
        self.touched = {EXPRESSIONS[version.key](row) for row in rows if EXPRESSIONS[version.where](row)}
        for row in rows:
            if EXPRESSIONS[version.where](row):
                self._add_totals(version, row)
            hour = self.hours[row.k, row.at.replace(minute=0, second=0)]
            ((_, argument),) = CALL.findall(version.hours)
            hour[0], hour[1] = hour[0] + 1, hour[1] + EXPRESSIONS[argument](row)
            self.scores[row.k].append((EXPRESSIONS[version.score](row), row.id))
            self.once.setdefault(EXPRESSIONS[version.same](row), row.id)
            self.rows.append((row, EXPRESSIONS[version.big](row)))
            n = 1 + sum(k == row.k for k, *_ in self.numbered)
            self.numbered.append((row.k, row.id, n, version.mark))

    def _add_totals(self, version: Version, row: Row) -> None:
        group = self.totals[EXPRESSIONS[version.key](row)]
        for name, text in version.totals.items():
            for position, (function, argument) in enumerate(CALL.findall(text)):
                value = 1 if function == "count" else EXPRESSIONS[argument](row)
                partial = group[name]
                partial[position] = MERGES[function](partial[position], value) if position in partial else value

    def state(self, version: Version) -> dict[str, dict[str, float | None]]:
        """Of ``totals``: each group with the columns that the version has."""
        return {
            key: {name: _value(group[name]) if name in group else None for name in version.totals}
            for key, group in self.totals.items()
        }

    def closed_hours(self) -> set[tuple[str, str, int, int]]:
        latest = max(row.at for row, _ in self.rows)
        ends = timedelta(hours=1)
        return {(k, at.isoformat(), *found) for (k, at), found in self.hours.items() if at + ends <= latest}  # type: ignore[misc]

    def best(self) -> dict[tuple[str, int], tuple[int, int]]:
        ranked = {k: sorted(scores, reverse=True)[:2] for k, scores in self.scores.items()}
        return {(k, rank): each for k, scores in ranked.items() for rank, each in enumerate(scores, start=1)}

    def pairs(self) -> set[tuple[int, int, int]]:
        near = timedelta(minutes=30)
        return {
            (small.id, big.id, value)
            for small, _ in self.rows
            for big, value in self.rows
            if small.v < 50 <= big.v and small.k == big.k and abs(small.at - big.at) <= near
        }


def _value(partials: Mapping[int, Any]) -> float:
    return float(partials[0] if len(partials) == 1 else Fraction(partials[0], partials[1]))


@dataclass
class Application:
    """A running application, what its author types, and the numbers that it has to have."""

    epochal: CommandLine
    client: Client
    folder: Path
    name: str = "accepted"
    version: Version = field(default_factory=Version)
    batch: Batch = field(default_factory=Batch)
    numbers: Iterator[int] = field(default_factory=count)
    written: int = 0

    def file(self, version: Version) -> Path:
        file = self.folder / "accepted.py"
        file.write_text(version.text())
        return file

    def submit(self) -> None:
        (self.folder / "in").mkdir()
        self.rows_arrive(wait=False)
        answer = self.epochal(
            *("submit", self.file(self.version), "--name", self.name, "--wait"),
            *("-p", f"input={self.folder / 'in'}", "-p", f"output={self.folder / 'out'}"),
            *("--set", "epoch_interval_seconds=0.05", "--set", "parallelism=2"),
        )
        assert answer.code == 0, answer.words

    def rows_arrive(self, wait: bool = True) -> None:
        """One file, which the running version reads in one epoch."""
        number = next(self.numbers)
        at = BEGIN + number * PERIOD
        rows = [
            Row(id, ("ax", "ay", "bx")[id % 3], (id * 37) % 101, (id * 13) % 11, at + timedelta(seconds=id % 60))
            for id in range(number * 12, number * 12 + 12)
        ]
        hidden = self.folder / f".{number}"
        hidden.write_text("".join(json.dumps({**row._asdict(), "at": row.at.isoformat()}) + "\n" for row in rows))
        hidden.rename(self.folder / "in" / f"{number}.json")
        self.batch.add(self.version, rows)
        self.written += len(rows)
        if wait:
            self.check()

    def check(self) -> None:
        """All numbers equal the batch computation."""
        head = self.after_all_rows()
        expected = self.batch.state(self.version)
        state = self.client.application(self.name).state("totals")
        for key, columns in expected.items():
            value = state.get(key, min_epoch=head, wait_seconds=60).value
            assert value is not None
            shown = {name: column for name, column in columns.items() if name in value}
            assert {name: _number(value[name]) for name in shown} == shown, (key, value)
        newest = {row["g"]: row for row in self.out("totals")}
        for key in self.batch.touched:
            assert {name: _number(newest[key].get(name)) for name in expected[key]} == expected[key], key
        assert {(r["k"], _iso(r["window_start"]), r["n"], r["total"]) for r in self.out("hours")} == (
            self.batch.closed_hours()
        )
        best = {(row["k"], row["rank"]): (row["score"], row["id"]) for row in self.out("best")}
        assert best == self.batch.best()
        assert sorted(row["id"] for row in self.out("once")) == sorted(self.batch.once.values())
        assert {(row["id"], row["other"], row["big"]) for row in self.out("pairs")} == self.batch.pairs()
        numbered = [(row["k"], row["id"], row["n"], row["mark"]) for row in self.out("numbered")]
        assert sorted(numbered) == sorted(self.batch.numbered)

    def after_all_rows(self) -> int:
        """The last epoch with rows, once all rows have been read."""

        def read() -> int:
            found = self.client.application(self.name).epochs.list(limit=None, state="committed")
            return sum(epoch.rows_in for epoch in found)

        eventually(lambda: read() == self.written, 120)
        head = self.client.applications.get(self.name).head
        assert head is not None
        return head.epoch

    def out(self, sink: str) -> list[dict[str, Any]]:
        """The rows of a sink in the order of their epochs."""
        folders = sorted((self.folder / "out" / sink).glob("epoch=*"), key=lambda path: int(path.name[6:]))
        files = [file for folder in folders for file in sorted(folder.glob("*.json"))]
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def preflight(self, version: Version, *options: str) -> Answer:
        return self.epochal("preflight", self.name, self.file(version), "--json", *options)

    def upgrade(self, version: Version, *options: str) -> Answer:
        answer = self.epochal("upgrade", self.name, self.file(version), *options)
        if answer.code == 0:
            self.version = version
        return answer


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _iso(text: str) -> str:
    return datetime.fromisoformat(text).isoformat()


@pytest.fixture(scope="module")
def application(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    from tests.service.cli.conftest import CommandLine

    with plane.client() as client:
        running = Application(CommandLine(dict(plane.environment)), client, tmp_path_factory.mktemp("accepted"))
        running.submit()
        yield running
        client.operations.wait(client.applications.stop(running.name), timeout_seconds=120)


def test_each_edit(application: Application) -> None:
    import time
    t = time.monotonic()
    def lap(what):
        nonlocal t
        print(f"{time.monotonic()-t:6.2f} {what}", flush=True); t = time.monotonic()
    application.check()
    lap("start")
    base = application.version
    edits = {
      "exch": base.with_totals(lo="max(v)", hi="min(v)"),
      "summax": base.with_totals(total="max(v)"),
      "countsum": base.with_totals(n="sum(v)"),
      "sumw": base.with_totals(total="sum(w)"),
      "sumv100": base.with_totals(total="sum(v * 100)"),
      "where": replace(base, where="w > 3"),
      "key": replace(base, key="substr(k, 2, 1)"),
      "added": base.with_totals(top="max(w)"),
      "added composite": base.with_totals(q="sum(w) / count(v)"),
      "composite": base.with_totals(r="sum(w) / count(w)"),
      "composite fn": base.with_totals(r="max(v) / count(w)"),
      "dropped": base.with_totals(lo=None),
      "dropped composite": base.with_totals(r=None),
      "hours": replace(base, hours="sum(w)"),
      "best": replace(base, score="w"),
      "once": replace(base, same="id % 7"),
      "pairs": replace(base, big="w"),
      "code": replace(base, mark="second"),
    }
    code = CODE
    for a, b in SPELLED:
        assert a in code
        code = code.replace(a, b)
    edits["spelled"] = replace(base, code=code)
    for name, version in edits.items():
        answer = application.preflight(version)
        lap(f"preflight {name}")
        d = json.loads(answer.output)
        print(name, answer.code, d["ok"])
        for t_ in d["comparison"]["tables"]:
            if t_["verdict"] != "same" or t_["code_changed"] or t_["problems"]:
                print("   ", t_["table"], t_["verdict"], t_["changed"], t_["partial"], t_["dropped"], t_["code_changed"])
                for p in t_["problems"]: print("      P", p)
                for p in t_["notes"]: print("      N", p)
        if not d["ok"]:
            answer = application.upgrade(version)
            lap(f"upgrade {name}")
            print(answer.code, answer.words)
            assert answer.code
    application.rows_arrive()
    lap("rows")
