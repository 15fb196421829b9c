"""Upgrades of a running application with each kind of edit change results only as accepted by name.

Rows arrive between the steps. A batch computation in plain Python gives the expected results: it applies to the rows of
each period the definitions of the version that ran in it.
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
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from epochal.testing.servers.control_plane import ControlPlane
    from tests.service.cli.conftest import Answer, CommandLine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
PERIOD = timedelta(minutes=20)
"""Event time between two files, short enough that windows of an hour are open while versions change."""


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
MERGES: Mapping[str, Callable[..., Any]] = {
    "count": lambda *values: sum(values),
    "sum": lambda *values: sum(values),
    "min": min,
    "max": max,
}
CALL = re.compile(r"(\w+)\(([^)]*)\)")


@dataclass(frozen=True)
class Version:
    """The edited parts of the pipeline. Each text occurs in its code and is computed in :class:`Batch`."""

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

SPELLED = CODE
for _before, _after in (
    # independent verbs in another order, a renamed helper column, and an unread one
    ('keyed = rows.with_columns(g="$key")$verbs', 'keyed = rows$verbs.with_columns(unread="v + 1", g="$key")'),
    ('rows.select("k", "id", "$score AS score")', 'rows.with_columns(s="$score").select("k", "id", "s AS score")'),
    ('.where("v >= 50")', '.where("((V) >= (50)) /* large */")'),
    ('n="count(*)", total="$hours"', 'n="COUNT(1)", total="($hours)"'),
):
    assert _before in SPELLED
    SPELLED = SPELLED.replace(_before, _after)


@dataclass
class Batch:
    """The batch computation of the expected results, period by period."""

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
        """The expected rows of ``totals`` with the columns of the version, by group."""
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
    """A running application, the commands on it, and its expected results."""

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
        self.add_rows(wait=False)
        answer = self.epochal(
            *("submit", self.file(self.version), "--name", self.name, "--wait"),
            *("-p", f"input={self.folder / 'in'}", "-p", f"output={self.folder / 'out'}"),
            *("--set", "epoch_interval_seconds=0.05", "--set", "parallelism=2"),
        )
        assert answer.code == 0, answer.stderr

    def add_rows(self, wait: bool = True) -> None:
        """Add one file, which the running version reads in one epoch."""
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
        """Check that all results equal the batch computation over this and the earlier versions."""
        head = self.await_all_rows()
        expected = self.batch.state(self.version)
        state = self.client.application(self.name).state("totals")
        for key, columns in expected.items():
            value = state.get(key, min_epoch=head, wait_seconds=30).value
            assert value is not None
            shown = {name: column for name, column in columns.items() if name in value}
            assert {name: _number(value[name]) for name in shown} == shown, (key, value)
        newest = {row["g"]: row for row in self.out("totals")}
        for key in self.batch.touched:
            assert {name: _number(newest[key].get(name)) for name in expected[key]} == expected[key], key
        closed = self.batch.closed_hours()
        eventually(lambda: len(self.out("hours")) >= len(closed), 120)  # windows close in the epoch after the rows
        hours = [(row["k"], _iso(row["window_start"]), row["n"], row["total"]) for row in self.out("hours")]
        assert sorted(hours) == sorted(closed)
        best = {(row["k"], row["rank"]): (row["score"], row["id"]) for row in self.out("best")}
        assert best == self.batch.best()
        assert sorted(row["id"] for row in self.out("once")) == sorted(self.batch.once.values())
        assert {(row["id"], row["other"], row["big"]) for row in self.out("pairs")} == self.batch.pairs()
        numbered = [(row["k"], row["id"], row["n"], row["mark"]) for row in self.out("numbered")]
        assert sorted(numbered) == sorted(self.batch.numbered)

    def await_all_rows(self) -> int:
        """Wait until all rows have been read; returns the epoch of the head."""

        def read() -> int:
            found = self.client.application(self.name).epochs.list(limit=None, state="committed")
            return sum(epoch.rows_in or 0 for epoch in found)

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


@dataclass(frozen=True)
class Edit:
    """``fragments``: parts of the problem that names the edit. ``options`` accept it; empty if no option does."""

    label: str
    change: Callable[[Version], Version]
    table: str
    fragments: tuple[str, ...]
    options: tuple[str, ...] = ()


def totals(**texts: str | None) -> Callable[[Version], Version]:
    return lambda version: version.with_totals(**texts)


def other(**texts: Any) -> Callable[[Version], Version]:
    return lambda version: replace(version, **texts)


FUNCTION = "Partial values of one function cannot be continued by another"
REFUSED = (
    Edit("extremes exchanged", totals(lo="max(v)", hi="min(v)"), "totals", ("column 'lo'", "column 'hi'")),
    Edit("a sum becomes a maximum", totals(total="max(v)"), "totals", ("column 'total'",)),
    Edit("a count becomes a sum", totals(n="sum(v)"), "totals", ("column 'n'",)),
    Edit("another function within a quotient", totals(r="max(v) / count(w)"), "totals", ("column 'r'",)),
)
ARGUMENTS = (
    Edit(
        "the sum of another column",
        totals(total="sum(w)"),
        "totals",
        ("column 'total' was computed from sum(v), and would continue with sum(w)",),
        ("--accept-changed", "totals.total"),
    ),
    Edit(
        "another argument within a quotient",
        totals(r="sum(w) / count(w)"),
        "totals",
        ("column 'r' was computed from sum(v), and would continue with sum(w)",),
        ("--accept-changed", "totals.r"),
    ),
    Edit(
        "the sum of another column in windows",
        other(hours="sum(w)"),
        "hours",
        ("column 'total' was computed from sum(v), and would continue with sum(w)",),
        ("--accept-changed", "hours.total"),
    ),
    Edit(
        "another order of a top",
        other(score="w"),
        "best",
        ("input column 'score' was computed from rows.v, and would continue with rows.w",),
        ("--accept-changed", "best.score"),
    ),
    Edit(
        "another key of duplicates",
        other(same="id % 7"),
        "once",
        (
            "key 'same' was computed from rows.id, and would continue with rows.id % 7",
            "give operator 'once' another name",
        ),
        ("--accept-changed", "once.same"),
    ),
    Edit(
        "another column of a join",
        other(big="w"),
        "pairs.left",
        ("input column 'big' was computed from rows.v, and would continue with rows.w",),
        ("--accept-changed", "pairs.big"),
    ),
)
INPUTS = (
    Edit(
        "a sum in another unit, after an upgrade whose acceptance it does not inherit",
        totals(total="sum(v * 100)"),
        "totals",
        ("column 'total' was computed from sum(w), and would continue with sum(v * 100)",),
        ("--accept-changed", "totals.total"),
    ),
    Edit(
        "a filter before the operator",
        other(where="w > 3"),
        "totals",
        ("its rows have passed no condition, and would pass rows.w > 3", "give operator 'totals' another name"),
        ("--accept-changed", "totals"),
    ),
    Edit(
        "another key expression",
        other(key="substr(k, 2, 1)"),
        "totals",
        ("key 'g' was computed from SUBSTRING(rows.k, 1, 1), and would continue with SUBSTRING(rows.k, 2, 1)",),
        ("--accept-changed", "totals.g"),
    ),
)
COLUMNS = (
    Edit(
        "an added aggregate",
        totals(top="max(w)"),
        "totals",
        ("the added column 'top' counts rows only from the first epoch of the upgrade on",),
        ("--accept-partial", "totals.top"),
    ),
    Edit(
        "an added quotient",
        totals(q="sum(w) / count(v)"),
        "totals",
        ("the added column 'q' counts rows only from the first epoch of the upgrade on",),
        ("--accept-partial", "totals.q"),
    ),
    Edit(
        "a dropped aggregate",
        totals(lo=None),
        "totals",
        ("column 'lo' is no longer declared",),
        ("--allow-dropped-state", "totals.lo"),
    ),
    Edit(
        "a dropped quotient",
        totals(r=None),
        "totals",
        ("column 'r' is no longer declared",),
        ("--allow-dropped-state", "totals.r"),
    ),
)


def edited(version: Version, edits: tuple[Edit, ...]) -> Version:
    for edit in edits:
        version = edit.change(version)
    return version


def check_refused(application: Application, edits: tuple[Edit, ...], verdict: str) -> None:
    """Check that preflight and upgrade report each edit with its reason and its exact option, and no other operator."""
    version = edited(application.version, edits)
    report = application.preflight(version)
    assert (report.code, report.document["ok"]) == (1, False)
    tables = {table["table"]: table for table in report.document["comparison"]["tables"]}
    verdicts = {name: verdict if name in {edit.table for edit in edits} else "same" for name in tables}
    assert {name: table["verdict"] for name, table in tables.items()} == verdicts
    refused = application.upgrade(version, *(("--accept-changed", "totals") if verdict == "refused" else ()))
    assert refused.code == 1
    printed = " ".join(refused.stderr.split())
    for edit in edits:
        for shown in (" ".join(tables[edit.table]["problems"]), printed):
            missing = [fragment for fragment in edit.fragments if fragment not in shown]
            if edit.options and not re.search(re.escape(" ".join(edit.options)) + r"(?!\.?\w)", shown):
                missing.append(" ".join(edit.options))
            assert not missing, (edit.label, missing, shown)
            if verdict == "refused":
                assert FUNCTION in shown and "--accept-changed" not in shown, edit.label


def accepted_in_lineage(application: Application) -> list[str]:
    tree = application.epochal("lineage", application.name, "--json").document
    changes = [change for node in tree["nodes"] for change in node["changes"]]
    return sorted(each["name"] for change in changes for each in change["detail"].get("accepted") or ())


@pytest.mark.long
def test_edits_change_results_only_after_their_acceptance(application: Application) -> None:
    application.check()
    check_refused(application, REFUSED, "refused")
    for edits, verdict in ((ARGUMENTS, "changed"), (INPUTS, "changed"), (COLUMNS, "evolved")):
        check_refused(application, edits, verdict)
        application.add_rows()  # processed by the old version
        version, options = edited(application.version, edits), [option for edit in edits for option in edit.options]
        answer = application.upgrade(version, *options)
        assert answer.code == 0, answer.stderr
    application.add_rows()
    acceptances = [edit.options for edit in (*ARGUMENTS, *INPUTS, *COLUMNS)]
    names = sorted(name for option, name in acceptances if option.startswith("--accept"))
    assert accepted_in_lineage(application) == names

    version = replace(application.version, code=SPELLED, mark="second")
    report = application.preflight(version)
    tables = report.document["comparison"]["tables"]
    assert report.code == 0 and {table["verdict"] for table in tables} == {"same"}
    assert [code.rpartition(".")[2] for table in tables for code in table["code_changed"]] == ["Numbered"]
    wrong = application.upgrade(version, "--accept-changed", "totals.totl")
    assert wrong.code == 1 and "'totals.totl' is accepted, but is not a difference" in " ".join(wrong.stderr.split())
    assert application.upgrade(version).code == 0, "harmless edits and other code need no acceptance"
    application.add_rows()
    assert accepted_in_lineage(application) == names
