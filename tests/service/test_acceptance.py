"""Accepted differences between a version and the existing state, for every command that deploys on that state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from epochal.cli.main import app
from epochal.client import Client
from epochal.contracts.configuration import Acceptance
from epochal.state.definition import ColumnDefinition, Definition, InputDefinition, Leaf, OperatorDefinition
from epochal.state.table import Column, StateKind, StateTable
from tests.service.bundles import exported, finished, imported, uploaded
from tests.service.conftest import Driver, Plane
from tests.service.lookups import StateDriver

FLIGHTS = "/v1/applications/flights"


def totals(lo: str = "min(v)", **added: str) -> dict[str, Any]:
    """The state table of ``aggregate("totals", lo=.., **added)``."""
    aggregates = {"lo": lo, **added}
    rows = Leaf(kind="source", name="in", columns={"k": "string", "v": "bigint"})
    definition = Definition(
        columns={
            name: ColumnDefinition(merge=text.partition("(")[0], aggregate=text) for name, text in aggregates.items()
        },
        operator=OperatorDefinition(inputs=(InputDefinition(rows=rows, keys=("k",), reads=()),)),
    )
    table = StateTable(
        id="totals",
        operator="totals",
        kind=StateKind.AGGREGATE,
        key=(Column(name="k", type="string"),),
        value=tuple(Column(name=name, type="bigint") for name in aggregates),
        definition=definition,
    )
    return table.model_dump(mode="json")


CONSOLE = {"out": "console:"}
CHANGED, PARTIAL = {"changed": ["totals.lo"]}, {"partial": ["totals.hi"]}
EDITS = {
    "another argument": (totals("min(v * 100)"), "--accept-changed totals.lo", CHANGED),
    "an added aggregate": (totals(hi="max(v)"), "--accept-partial totals.hi", PARTIAL),
    "the operator as a whole": (totals("min(w)", hi="max(v)"), "--accept-changed totals.lo", None),
}


@pytest.fixture
def driver(plane: Plane) -> Driver:
    """The driver of an application with two committed epochs."""
    plane.application(artifact=plane.artifact(CONSOLE, tables=[totals()]))
    driver = plane.driver()
    driver.running()
    driver.epochs(2)
    return driver


def stop(plane: Plane, driver: Driver) -> None:
    plane.post(f"{FLIGHTS}/stop")
    driver.stop()


def refused(answer: dict[str, Any], option: str) -> bool:
    return answer["type"] == "urn:epochal:problem:incompatible-state" and option in answer["detail"]


def orders(plane: Plane, application: str = "flights") -> Acceptance:
    """The acceptance in the orders of the application's next driver."""
    return plane.control.ledger.plan(plane.get(f"/v1/applications/{application}")["execution"]).acceptance


@pytest.mark.parametrize("edit", EDITS)
def test_an_upgrade_with_differences_needs_their_acceptance(plane: Plane, driver: Driver, edit: str) -> None:
    table, option, acceptance = EDITS[edit]
    acceptance = acceptance or {"changed": ["totals"], "partial": ["totals"]}
    other = plane.artifact(CONSOLE, tables=[table])
    before = plane.get(f"{FLIGHTS}/versions")

    report = plane.post("/v1/preflight", 200, application="flights", artifact=other)
    assert not report["ok"] and any(option in problem for problem in report["comparison"]["problems"])
    assert refused(plane.post(f"{FLIGHTS}/versions", 422, artifact=other), option)
    fork = {"name": "fork", "artifact": other}
    assert refused(plane.post(f"{FLIGHTS}/fork", 422, **fork), option)
    for path, body in (("/v1/preflight", {"application": "flights"}), (f"{FLIGHTS}/versions", {})):
        wrong = {**body, "artifact": other, "acceptance": {**acceptance, "partial": ["totals.top"]}}
        answer = plane.post(path, 422, **wrong)
        assert answer["type"].endswith("invalid-input") and "The differences are: totals." in answer["detail"], path
    assert plane.get(f"{FLIGHTS}/versions") == before and driver.running() == []

    report = plane.post("/v1/preflight", 200, application="flights", artifact=other, acceptance=acceptance)
    (change,) = report["comparison"]["tables"]
    assert report["ok"] and change["problems"] == []
    assert all(meaning["accepted"] for meaning in change["changed"])
    assert (bool(change["changed"]), change["partial"]) == ("lo" in option or "hi" not in option, change["partial"])
    plane.post(f"{FLIGHTS}/fork", 201, **fork, acceptance=acceptance)
    assert orders(plane, "fork") == Acceptance.model_validate(acceptance)
    version = plane.post(f"{FLIGHTS}/versions", 201, artifact=other, acceptance=acceptance)
    assert version["acceptance"] == {"changed": [], "partial": [], **acceptance}
    (directive,) = driver.running()
    assert directive.arguments["acceptance"] == version["acceptance"]


def test_preflight_describes_each_difference(plane: Plane, driver: Driver) -> None:
    other = plane.artifact(CONSOLE, tables=[totals("min(v * 100)", hi="max(v)")])
    (change,) = plane.post("/v1/preflight", 200, application="flights", artifact=other)["comparison"]["tables"]
    assert (change["verdict"], change["partial"], change["unknown"]) == ("changed", ["hi"], False)
    (meaning,) = change["changed"]
    assert (meaning["column"], meaning["what"], meaning["accepted"]) == ("lo", "argument", False)
    assert ("v * 100" in meaning["after"], "v * 100" in meaning["before"]) == (True, False)
    without = {**totals(), "definition": None}
    plane.application("other", artifact=plane.artifact(CONSOLE, tables=[without]))
    earlier = plane.driver("other")
    earlier.running()
    earlier.epoch()
    report = plane.post("/v1/preflight", 200, application="other", artifact=plane.artifact(CONSOLE, tables=[totals()]))
    assert report["ok"] and report["comparison"]["tables"][0]["unknown"]


def test_an_acceptance_applies_to_one_version_only(plane: Plane, driver: Driver) -> None:
    stop(plane, driver)
    other = plane.artifact(CONSOLE, tables=[totals("min(v * 100)")])
    plane.post(f"{FLIGHTS}/versions", 201, artifact=other, acceptance=CHANGED)
    plane.post(f"{FLIGHTS}/start")
    assert orders(plane) == Acceptance(changed=("totals.lo",)), (
        "every attempt before the first epoch has the acceptance"
    )
    successor = plane.driver()
    successor.running()
    # Before the first epoch of version 2, a further version, a fork and a rescale do not inherit its acceptance.
    option = "--accept-changed totals.lo"
    assert refused(plane.post(f"{FLIGHTS}/versions", 422, parameters={"limit": 3}), option)
    assert refused(plane.post(f"{FLIGHTS}/fork", 422, name="fork"), option)
    rescale = plane.post(f"{FLIGHTS}/rescale", 422, parallelism=3)
    assert "Version 2 differs from the snapshot in totals.lo" in rescale["detail"]
    successor.epoch()
    plane.post(f"{FLIGHTS}/fork", 201, name="fork")
    assert orders(plane, "fork") == Acceptance()
    plane.post(f"{FLIGHTS}/versions", 201, parameters={"limit": 3})
    (directive,) = successor.running()
    assert directive.arguments["acceptance"] == {"changed": [], "partial": []}


def test_a_rollback_to_before_an_upgrade_needs_its_own_acceptance(plane: Plane, driver: Driver) -> None:
    plane.post(f"{FLIGHTS}/savepoints", name="two")
    for directive in driver.running():
        driver.catalog.complete(directive.id, driver.head)
    stop(plane, driver)
    other = plane.artifact(CONSOLE, tables=[totals("min(v * 100)")])
    plane.post(f"{FLIGHTS}/versions", 201, artifact=other, acceptance=CHANGED)
    plane.post(f"{FLIGHTS}/start")
    successor = plane.driver()
    successor.running()
    successor.epoch()
    stop(plane, successor)

    option = "--accept-changed totals.lo"
    back = {"epoch": 2}
    assert refused(plane.post(f"{FLIGHTS}/rollback", 422, **back, dry_run=True), option)
    assert refused(plane.post(f"{FLIGHTS}/rollback", 422, **back), option)
    wrong = plane.post(f"{FLIGHTS}/rollback", 422, **back, acceptance={"changed": ["totals.hi"]})
    assert "The differences are: totals.lo." in wrong["detail"]
    plane.post(f"{FLIGHTS}/start", savepoint="two")
    assert orders(plane) == Acceptance(), "a start from a savepoint accepts nothing"
    third = plane.driver()
    third.running()
    stop(plane, third)
    plane.post(f"{FLIGHTS}/rollback", **back, acceptance=CHANGED)
    plane.post(f"{FLIGHTS}/start")
    assert orders(plane) == Acceptance(changed=("totals.lo",))
    newest = plane.get(f"{FLIGHTS}/versions")["items"][0]
    assert (newest["number"], newest["acceptance"]["changed"]) == (2, ["totals.lo"])


def test_an_import_with_other_parameters_is_checked_as_an_upgrade(plane: Plane) -> None:
    tables_of = {"new": [totals("min(v * 100)")]}
    artifact = plane.artifact(CONSOLE, tables=[totals()], tables_of=tables_of)
    plane.application(artifact=artifact)
    StateDriver(plane, tables=(StateTable.model_validate(totals()),)).epoch()
    bundle = exported(plane)
    body = {"name": "copy", "parameters": {"out": "/copy", "tables": "new"}}
    id = uploaded(plane, bundle)
    assert refused(plane.post(f"/v1/imports/{id}/application", 422, **body), "--accept-changed totals.lo")
    wrong = plane.post(f"/v1/imports/{id}/application", 422, **body, acceptance=PARTIAL)
    assert "The differences are: totals.lo." in wrong["detail"]
    finished(plane, plane.post(f"/v1/imports/{id}/application", **body, acceptance=CHANGED, start=True))
    assert orders(plane, "copy") == Acceptance(changed=("totals.lo",))
    same = {"name": "same", "parameters": {"out": "/same"}}
    assert imported(plane, bundle, **same)["state"] == "succeeded"


def test_state_tables_report_from_which_epoch_a_column_counts(plane: Plane) -> None:
    plane.application()
    table = StateTable.model_validate(totals(mean_sum="sum(v)"))
    value = tuple(column if column.name == "lo" else column.model_copy(update={"since": 6}) for column in table.value)
    StateDriver(plane, tables=(table.model_copy(update={"value": value}),)).epoch()
    (answer,) = plane.get(f"{FLIGHTS}/state")["items"]
    assert [column.get("since") for column in answer["value"]] == [None, 6]
    assert "since" not in answer["value"][0], "a column that counts all rows"


def counting(**since: int | None) -> StateTable:
    """The state table ``totals`` with further columns and the epoch from which each counts."""
    table = StateTable.model_validate(totals())
    value = tuple(Column(name=name, type="bigint", since=epoch) for name, epoch in {"lo": None, **since}.items())
    return table.model_copy(update={"value": value})


BEFORE, ADDED, AGAIN, PREPARED = counting(), counting(hi=2), counting(hi=4), counting(hi=5)
"""Without column ``hi``; with ``hi`` added in the second epoch; dropped and added again in the fourth; in the fifth."""


@pytest.fixture
def upgraded(plane: Plane) -> Plane:
    """Four committed epochs and a prepared fifth."""
    plane.application()
    driver = StateDriver(plane, tables=(BEFORE,))
    driver.epoch((BEFORE, [{"k": "a", "lo": 1}, {"k": "b", "lo": 2}]))
    driver.epoch((ADDED, [{"k": "b", "lo": 2, "hi": 7}]), tables=(ADDED,))
    driver.epoch(tables=(ADDED,))
    driver.epoch(tables=(AGAIN,))
    plane.get(f"{FLIGHTS}/state/totals/keys/a", min_epoch=4)
    driver.prepare((PREPARED, [{"k": "b", "lo": 2, "hi": 9}]), tables=(PREPARED,))
    return plane


MOMENTS: list[tuple[dict[str, Any], dict[str, int] | None]] = [
    ({}, {"hi": 4}),
    ({"epoch": 1}, None),
    ({"epoch": 2}, {"hi": 2}),
    ({"epoch": 3}, {"hi": 2}),
    ({"epoch": 4}, {"hi": 4}),
    ({"isolation": "read_uncommitted"}, {"hi": 5}),
]
"""The requested snapshot and its ``since``."""


def test_lookups_return_the_since_field_of_the_answering_snapshot(upgraded: Plane) -> None:
    state = f"{FLIGHTS}/state/totals"
    keys = [{"k": "a"}, {"k": "x"}, {"k": "b"}]
    with Client(upgraded.settings.url, upgraded.admin_token) as client:
        table = client.application("flights").state("totals")
        for moment, since in MOMENTS:
            answers = [
                upgraded.get(f"{state}/keys/a", **moment),
                upgraded.get(f"{state}/keys", key="b", **moment),
                upgraded.post(f"{state}/lookup", 200, keys=keys, **moment),
                upgraded.get(f"{state}/scan", limit=1, **moment),
            ]
            answers.append(upgraded.get(f"{state}/scan", limit=1, cursor=answers[-1]["next_cursor"], **moment))
            for answer in answers:
                assert ("since" in answer, answer.get("since")) == (since is not None, since), answer
                assert answer["epoch"] == moment.get("epoch", 5 if moment else 4)
            read = table.get("a", **moment), table.lookup(keys, **moment), table.scan(**moment)
            assert [answer.since for answer in read] == [since] * 3, moment
            for columns in (table.lookup_table(keys, **moment), table.scan_table(limit=1, **moment)):
                found = columns.schema.metadata.get(b"since")
                assert (None if found is None else json.loads(found)) == since, moment
            frames = table.lookup_frame(keys, **moment), table.scan_frame(limit=1, **moment)
            assert [frame.attrs.get("since") for frame in frames] == [since] * 2, moment


def test_the_etag_depends_on_the_since_field(upgraded: Plane) -> None:
    """The value of ``a`` is equal in the second and the fourth epoch; only ``since`` differs."""
    path = f"{FLIGHTS}/state/totals/keys/a"
    answers = {epoch: upgraded.client.get(path, params={"epoch": epoch}) for epoch in (2, 3, 4)}
    assert len({json.dumps(answer.json()["value"]) for answer in answers.values()}) == 1
    tags = {epoch: answer.headers["etag"] for epoch, answer in answers.items()}
    assert tags[2] == tags[3] != tags[4]
    newest = upgraded.client.get(path)
    assert (newest.headers["etag"], newest.json()["since"]) == (tags[4], {"hi": 4})
    for tag, status in ((tags[2], 200), (tags[4], 304)):
        assert upgraded.client.get(path, headers={"If-None-Match": tag}).status_code == status


def test_each_change_in_a_history_has_the_since_field_of_its_epoch(upgraded: Plane) -> None:
    query = {"key": "b", "isolation": "read_uncommitted"}
    items = upgraded.get(f"{FLIGHTS}/state/totals/history", **query)["items"]
    assert [(item["epoch"], item["new"], item.get("since")) for item in items] == [
        (5, {"lo": 2, "hi": 9}, {"hi": 5}),
        (1, {"lo": 2}, None),
    ]
    assert "since" not in items[1]
    assert upgraded.get(f"{FLIGHTS}/state/totals/blame", **query)["change"]["since"] == {"hi": 5}
    for before, after, since in ((1, 2, {"hi": 2}), (2, 1, None), (3, 4, {"hi": 4})):
        path = f"{FLIGHTS}/snapshots/{before}/diff"
        (table,) = upgraded.get(path, to=after)["tables"]
        assert table.get("since") == upgraded.get(f"{path}/totals", to=after).get("since") == since


def test_get_and_scan_report_from_which_epoch_a_column_counts(upgraded: Plane) -> None:
    environment = {**upgraded.environment, "COLUMNS": "400"}

    def shown(*arguments: str) -> str:
        result = CliRunner().invoke(app, [*arguments], env=environment)
        assert result.exit_code == 0, result.output
        return str(result.output)

    notice = "hi: rows from epoch {} on; incomplete for keys and windows of earlier epochs."
    for command in (("get", "flights", "totals", "a"), ("scan", "flights", "totals")):
        assert notice.format(4) in shown(*command)
        assert notice.format(2) in shown(*command, "--epoch", "3")
        assert "incomplete" not in shown(*command, "--epoch", "1")
        assert json.loads(shown(*command, "--json"))["since"] == {"hi": 4}
        assert "since" not in json.loads(shown(*command, "--epoch", "1", "--json"))


def test_commands_refuse_differences_without_their_acceptance_options(
    plane: Plane, driver: Driver, tmp_path: Path
) -> None:
    """The refusal names the option, and the command succeeds with it."""
    environment = {**plane.environment, "COLUMNS": "400"}
    code = tmp_path / "flights.py"
    tables = [totals("min(v * 100)", hi="max(v)", top="max(v)")]
    code.write_text("# " + json.dumps({"sinks": CONSOLE, "tables": tables}))
    desired = tmp_path / "desired.yaml"
    desired.write_text(json.dumps({"name": "flights", "code": "flights.py", "parameters": {"out": "/data/flights"}}))
    accepting = ("--accept-changed", "totals.lo", "--accept-partial", "totals.hi, totals.top")
    acceptance = Acceptance(changed=("totals.lo",), partial=("totals.hi", "totals.top"))

    def command(*arguments: str, expect: int = 0) -> str:
        result = CliRunner().invoke(app, [*arguments], env=environment)
        assert result.exit_code == expect, result.output
        return " ".join(f"{result.output} {result.exception or ''}".split())

    bundle = str(tmp_path / "flights.epochal")
    command("export", "flights", "--output", bundle)
    shown = command("preflight", "flights", str(code), expect=1)
    assert "--accept-changed totals.lo" in shown and "counts later rows only: hi, top" in shown
    assert "argument of lo: min(v) → min(v * 100)" in shown
    shown = command("preflight", "flights", str(code), *accepting)
    assert "✓ accepted" in shown and "(accepted)" in shown and "from the first epoch of the upgrade on" in shown
    fork = ("fork", "flights", "fork", "--file", str(code), "--no-start")
    assert "--accept-partial totals.hi" in command(*fork, expect=1)
    command(*fork, *accepting)
    assert plane.get("/v1/applications/fork/versions")["items"][0]["acceptance"] == acceptance.model_dump(mode="json")
    apply = ("apply", "--file", str(desired), "--no-wait")
    assert "--accept-changed totals.lo" in command(*apply, expect=1)
    assert "--accept-changed totals.lo" in command("upgrade", "flights", str(code), expect=1)
    upgrade = ("upgrade", "flights", str(code))
    wrong = command(*upgrade, *accepting, "--accept-partial", "totals.x", expect=1)
    assert "'totals.x' is accepted, but is not a difference" in wrong
    command(*apply, *accepting)
    (directive,) = driver.running()
    assert Acceptance.model_validate(directive.arguments["acceptance"]) == acceptance
    unchanged = {"name": "fork", "code": "flights.py", "parameters": {"out": "/data/flights"}, "state": "stopped"}
    desired.write_text(json.dumps(unchanged))
    assert "The application is not upgraded, so there is no difference to accept" in command(
        *apply, *accepting, expect=1
    )
    assert "no difference to accept" in command("import", bundle, "--name", "copy", *accepting, expect=1)


def test_rollback_command_to_before_an_upgrade_needs_an_acceptance(plane: Plane, driver: Driver) -> None:
    stop(plane, driver)
    plane.post(
        f"{FLIGHTS}/versions", 201, artifact=plane.artifact(CONSOLE, tables=[totals(hi="max(v)")]), acceptance=PARTIAL
    )
    environment = plane.environment
    back = ["rollback", "flights", "--epoch", "1", "--yes"]
    assert CliRunner().invoke(app, back, env=environment).exit_code == 1
    result = CliRunner().invoke(app, [*back, "--accept-partial", "totals"], env=environment)
    assert result.exit_code == 0, result.output
    assert plane.get(f"{FLIGHTS}/versions")["items"][0]["acceptance"]["partial"] == ["totals"]
