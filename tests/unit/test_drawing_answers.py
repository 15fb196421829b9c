"""Answers of the client as notebooks show them: lineage, epochs, state, graphs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings

from epochal.client.drawn import (
    Blame,
    EpochList,
    KeyHistory,
    Lineage,
    Scan,
    StateLookup,
    StateTables,
    StateValue,
    Version,
)
from epochal.client.models import Epoch
from tests.unit.test_cli_lineage import lineages, plain
from tests.unit.test_drawing_pictures import HOSTILE, SCRIPT, checked, said
from tests.unit.test_drawing_terminal import shop

NOW = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)
PLACE = {"table": "counts", "branch": "shop", "epoch": 12}
READ = {**PLACE, "isolation": "read_committed"}


def words(picture: str) -> str:
    return " ".join(said(checked(picture)).split())


@given(lineages())
@settings(max_examples=50)
def test_any_lineage_has_one_mark_and_at_most_one_line_for_each_row(lineage: Any) -> None:
    drawn = Lineage.model_validate(lineage.model_dump())
    root = checked(drawn._repr_html_())
    marks = list(root.iter("{http://www.w3.org/2000/svg}circle"))
    lines = list(root.iter("{http://www.w3.org/2000/svg}path"))
    assert len(lines) <= len(marks) <= len(lineage.nodes)
    assert len({mark.get("cy") for mark in marks}) == len(marks)
    if not lineage.nodes:
        assert "any has no snapshots yet." in said(root)


def lineage(number: int, **more: Any) -> Lineage:
    nodes = [plain("shop", epoch, **(more if epoch == number else {})) for epoch in range(number, 0, -1)]
    fork = [
        plain(f"fork-{index}", 5, message=name, tags=[name], state="prepared") for index, name in enumerate(HOSTILE)
    ]
    edges = [
        {"from": {"branch": "shop", "epoch": epoch}, "to": {"branch": "shop", "epoch": epoch + 1}, "kind": "epoch",
         "label": None, "slices": None}
        for epoch in range(1, number)
    ]  # fmt: skip
    edges += [
        {"from": {"branch": "shop", "epoch": 4}, "to": {"branch": each.branch, "epoch": 5}, "kind": "fork",
         "label": {"by": SCRIPT, "at": NOW, "message": each.message, "version": 1, "artifact": "0" * 64,
                   "parameters": {}}, "slices": None}
        for each in fork
    ]  # fmt: skip
    head = {"branch": "shop", "epoch": number}
    answer = {"application": "shop", "head": head, "nodes": [*fork, *nodes], "edges": edges, "next_cursor": "more"}
    return Lineage.model_validate(answer)


def test_a_lineage_folds_runs_and_names_forks() -> None:
    text = words(lineage(2000, savepoints=["saved"])._repr_html_())
    assert "2000 shop · savepoint saved" in text and "5–1999 1,995 epochs" in text
    assert "fork by <script>window.wrong=1</script>" in text
    assert "Older snapshots are on further pages." in text
    forks = Lineage.model_validate({**lineage(400).model_dump(by_alias=True), "edges": []})
    assert "further" not in words(forks._repr_html_()) and "older rows" in words(forks._repr_html_())


def epochs(number: int) -> EpochList:
    return EpochList(
        Epoch(
            branch="shop",
            epoch=epoch,
            attempt=1,
            state="aborted" if epoch == 3 else "committed",
            rows_in=epoch * 100,
            state_rows=None,
            started_at=NOW,
            committed_at=None if epoch == 3 else NOW + timedelta(seconds=epoch),
        )
        for epoch in range(number, 0, -1)
    )


def test_epochs_are_charts_with_units() -> None:
    text = words(epochs(12)._repr_html_())
    assert "Duration of epochs latest 12 s 12 s 0 ms" in text and "epoch 1 epoch 12" in text
    assert "Rows in latest 1,200 rows" in text and "Changed" not in text
    assert "No epochs." in words(EpochList()._repr_html_())
    many = checked(epochs(1000)._repr_html_())
    assert len(list(many.iter("{http://www.w3.org/2000/svg}rect"))) <= 2 * 200


def test_state_is_tables_and_text_is_escaped() -> None:
    value = StateValue.model_validate({**READ, "key": {"k": SCRIPT}, "value": {"n": 7}})
    assert words(value._repr_html_()) == f"counts at epoch 12 k n {SCRIPT} 7"
    several = StateValue.model_validate(
        {
            **PLACE,
            "isolation": "read_committed",
            "key": {"k": 1},
            "entries": [{"at": "x", "n": 1}, {"at": "y", "n": None}],
        }
    )
    assert words(several._repr_html_()) == "counts at epoch 12 k at n 1 x 1 1 y null"
    found = StateLookup.model_validate({**READ, "values": [{"n": 1}, None]})
    assert words(found._repr_html_()) == "counts at epoch 12 key n no. 1 1 no. 2 1 key without a row"
    tables = StateTables(shop().tables)
    assert "State tables at epoch 12" in words(tables._repr_html_()) and "customer bigint" in words(
        tables._repr_html_()
    )


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_text_everywhere(name: str) -> None:
    row = {"key": {name: name}, "value": {name: name, "n": 1}}
    scan = {**READ, "items": [row] * 500, "next_cursor": name, "note": name}
    text = words(Scan.model_validate(scan)._repr_html_())
    assert "450 further rows not shown" in text and "more rows follow" in text
    change = {"branch": name, "epoch": 3, "application": name, "at": NOW, "key": {name: name}, "expired": False}
    items = [{**change, "old": None, "new": {name: name, "n": 5}}, {**change, "old": {"n": 5}, "new": None, "epoch": 2}]
    answer = {**PLACE, "table": name, "key": {name: name}, "items": items, "next_cursor": None}
    known = {"known_since": {"branch": name, "epoch": 1}}
    assert "known since epoch 1" in words(KeyHistory.model_validate(answer | known)._repr_html_())
    slices = {name: {"start": {name: 1}, "end": {name: 2}, "rows": 3, "detail": {}}}
    blame = {**PLACE, "table": name, "key": {name: name}, "change": items[0], "artifact": "a" * 64, "filename": name,
             "version": 2, "parameters": {name: name}, "changes": [], "slices": slices}  # fmt: skip
    assert "3 rows, from" in words(Blame.model_validate(blame)._repr_html_())
    nodes = [{"id": 0, "name": name, "type": name, "description": {name: name, "keys": [name]}}]
    checked(shop(nodes=nodes)._repr_html_())


def test_ten_thousand_columns_and_long_values_are_cut() -> None:
    row = {f"c{number}": "x" * 10_000 for number in range(10_000)}
    scan = {
        **PLACE,
        "isolation": "read_committed",
        "items": [{"key": {"k": 1}, "value": row}] * 60,
        "next_cursor": None,
    }
    picture = Scan.model_validate(scan)._repr_html_()
    assert len(picture) < 400_000 and "9,976 further columns not shown" in picture


def test_graphs_have_their_figures() -> None:
    text = words(shop()._repr_html_())
    assert "aggregate by customer spending 1,000 rows/s · 40 % busy 1,000 rows, 4.0 KiB" in text
    assert "source kafka orders 2,000 rows/s 3.0 s behind" in text
    graph = shop().graph
    assert graph is not None
    version = Version.model_construct(number=3, graph=graph)
    assert "aggregate by customer spending" in words(version._repr_html_())
