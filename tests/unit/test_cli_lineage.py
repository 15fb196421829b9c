"""The lineage graph: folding, layout and the rendered text."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from io import StringIO
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from epochal.cli.lineage import LineageView
from epochal.client.models import Change, EpochCounts, Lineage, LineageEdge, LineageNode
from epochal.contracts.identity import EpochKey
from epochal.drawing.lanes import Glyph, Row, rows
from epochal.wire.lineage_entries import entries, items

NOW = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)
DOWNWARD = {Glyph.LINE, Glyph.CROSS}
LEFTWARD = {Glyph.END, Glyph.TEE, Glyph.ACROSS, Glyph.CROSS}


def plain(branch: str, epoch: int, **more: Any) -> LineageNode:
    """A committed snapshot without annotations, except for ``more``."""
    facts = {
        "application": branch,
        "first": epoch,
        "epochs": 1,
        "state": "committed",
        "version": 1,
        "artifact": "0" * 64,
        "filename": "flights.py",
        "parameters": {},
        "changes": [],
        "savepoints": [],
        "tags": [],
        "pinned": False,
        "message": None,
        "counts": {},
        "committed_at": NOW,
        "collected": False,
    }
    return LineageNode.model_validate({"branch": branch, "epoch": epoch, **facts, **more})


def edge(older: LineageNode, newer: LineageNode, kind: Any) -> LineageEdge:
    return LineageEdge(source=older.key, target=newer.key, kind=kind, label=None, slices=None)


def lineage_of(
    application: str, head: EpochKey | None, nodes: Sequence[LineageNode], edges: Sequence[LineageEdge]
) -> Lineage:
    return Lineage(application=application, head=head, nodes=list(nodes), edges=list(edges), next_cursor=None)


@st.composite
def lineages(draw: st.DrawFn) -> Lineage:
    """Any tree of snapshots: plain epochs, forks anywhere, savepoints, several roots, any of them the head."""
    size = draw(st.integers(0, 40))
    nodes: list[LineageNode] = []
    edges: list[LineageEdge] = []
    for index in range(size):
        parent = draw(st.one_of(st.none(), st.integers(0, index - 1))) if index else None
        # Histories are mostly straight lines.
        parent = draw(st.sampled_from([parent, index - 1, index - 1])) if index else None
        continues = parent is not None and draw(st.integers(0, 9)) > 0 and parent == index - 1
        branch = nodes[parent].branch if parent is not None and continues else f"branch-{index}"
        state = draw(st.sampled_from(["committed", "committed", "committed", "prepared"]))
        savepoints = ["saved"] if draw(st.integers(0, 9)) == 0 else []
        node = plain(branch, index, state=state, savepoints=savepoints)
        nodes.append(node)
        if parent is not None:
            kind = "epoch" if continues else "fork"
            edges.append(edge(nodes[parent], node, kind))
    head = draw(st.sampled_from(nodes)).key if nodes else None
    return lineage_of("any", head, nodes[::-1], edges)


@given(lineages(), st.booleans())
def test_every_snapshot_is_in_exactly_one_entry(lineage: Lineage, fold: bool) -> None:
    shown = [node.key for entry in entries(lineage, fold) for node in entry.nodes]
    assert sorted(shown) == sorted(node.key for node in lineage.nodes)


@given(lineages(), st.booleans())
def test_entries_precede_their_parents_and_follow_the_edges(lineage: Lineage, fold: bool) -> None:
    arranged = entries(lineage, fold)
    parent_of = {edge.target: edge.source for edge in lineage.edges}
    for index, entry in enumerate(arranged):
        for newer, older in pairwise(entry.nodes):
            assert parent_of[newer.key] == older.key
        if entry.parent is None:
            assert entry.oldest.key not in parent_of
        else:
            assert entry.parent > index
            assert parent_of[entry.oldest.key] == arranged[entry.parent].newest.key


@given(lineages())
def test_only_plain_epochs_are_folded(lineage: Lineage) -> None:
    forked = [edge.source for edge in lineage.edges]
    for entry in entries(lineage):
        if entry.folded:
            assert len(entry.nodes) >= 3
            for node in entry.nodes:
                assert node.state == "committed"
                assert not node.savepoints
                assert node.key != lineage.head
                assert forked.count(node.key) == 1


@given(lineages(), st.booleans())
def test_each_entry_is_drawn_once_and_its_line_leads_to_its_parent(lineage: Lineage, fold: bool) -> None:
    arranged = entries(lineage, fold)
    drawn = rows(items(arranged))
    assert [row.item for row in drawn if row.item is not None] == list(range(len(arranged)))
    for index, entry in enumerate(arranged):
        if entry.parent is not None:
            assert follow(drawn, index) == entry.parent


@given(lineages())
def test_rows_are_no_wider_than_the_open_lines(lineage: Lineage) -> None:
    arranged = entries(lineage)
    tips = len(arranged) - len({entry.parent for entry in arranged if entry.parent is not None})
    assert all(len(row.cells) <= tips for row in rows(items(arranged)))


@given(lineages())
def test_a_head_without_children_is_drawn_first(lineage: Lineage) -> None:
    arranged = entries(lineage)
    if lineage.head is not None and all(edge.source != lineage.head for edge in lineage.edges):
        assert arranged[0].newest.key == lineage.head
        assert rows(items(arranged))[0].cells[0].glyph is Glyph.ITEM


def follow(drawn: Sequence[Row], entry: int) -> int | None:
    """Entry at which the line down from ``entry`` arrives, according to the drawing alone."""
    start = next(number for number, row in enumerate(drawn) if row.item == entry)
    lane = drawn[start].lane
    for row in drawn[start + 1 :]:
        glyph = row.cells[lane].glyph
        if glyph is Glyph.ITEM:
            return row.item
        if glyph in {Glyph.END, Glyph.TEE}:
            lane -= 1
            while row.cells[lane].glyph is not Glyph.JOIN:
                assert row.cells[lane].glyph in LEFTWARD
                lane -= 1
        else:
            assert glyph in DOWNWARD or glyph is Glyph.JOIN
    return None


def node(branch: str, epoch: int, seconds_ago: float, **more: object) -> LineageNode:
    details = {
        "application": branch,
        "state": "committed",
        "artifact": "3fa9c2d1" * 8,
        "parameters": {"late_minutes": 15},
        "counts": EpochCounts(rows_in=100, rows_out=7, state_rows=10, state_bytes=900),
        "committed_at": NOW - timedelta(seconds=seconds_ago),
        **more,
    }
    return plain(branch, epoch, **details)


def chain(nodes: Sequence[LineageNode]) -> list[LineageEdge]:
    return [edge(older, newer, "epoch") for older, newer in pairwise(nodes)]


@pytest.fixture
def forked() -> Lineage:
    """Ten epochs of flights, a savepoint at 4, and a fork there with another parameter."""
    main = [node("flights", epoch, seconds_ago=11.0 - epoch) for epoch in range(1, 11)]
    main[0] = main[0].model_copy(update={"changes": (Change(kind="start"),)})
    main[3] = main[3].model_copy(update={"savepoints": ("before",)})
    changed = {"parameters": {"late_minutes": 30}}
    fork = [node("what-if", epoch, seconds_ago=1.5, **changed) for epoch in (5, 6)]
    fork[0] = fork[0].model_copy(update={"changes": (Change(kind="fork"),)})
    edges = [*chain(main), *chain(fork), edge(main[3], fork[0], "fork")]
    newest_first = [*reversed(main[4:]), *reversed(fork), *reversed(main[:4])]
    return lineage_of("flights", EpochKey("flights", 10), newest_first, edges)


def rendered(lineage: Lineage, width: int, encoding: str = "utf-8", **options: bool) -> list[str]:
    class Terminal(StringIO):
        @property
        def encoding(self) -> str:  # type: ignore[override]
            return encoding

    console = Console(file=Terminal(), width=width, no_color=True, force_terminal=False)
    console.print(LineageView(lineage, now=NOW, **options))
    written = console.file
    assert isinstance(written, StringIO)
    return [line.rstrip() for line in written.getvalue().splitlines()]


def test_a_fork_is_drawn_in_80_columns(forked: Lineage) -> None:
    assert rendered(forked, 80) == [
        "●    10   flights                                1 s ago",
        "┊    5–9  5 epochs                               2 s ago",
        "│ ●  6    what-if                                1 s ago",
        "│ ●  5    fork of flights late_minutes 15 → 30   1 s ago",
        "├─╯",
        "●    4    savepoint before                       7 s ago",
        "●    3                                           8 s ago",
        "●    2                                           9 s ago",
        "●    1    start 3fa9c2d1 late_minutes=15        10 s ago",
    ]


def test_counts_are_shown_where_there_is_room(forked: Lineage) -> None:
    lines = rendered(forked, 120)
    assert "500 rows in" in lines[1]
    assert "50 changed" in lines[1]
    assert all(len(line) <= 120 for line in lines)


def test_ascii_is_used_on_terminals_without_unicode(forked: Lineage) -> None:
    lines = rendered(forked, 80, encoding="ascii")
    assert lines[3].startswith("| *  5    fork of flights late_minutes 15 > 30")
    assert lines[4] == "|-'"
    assert all(line.isascii() for line in lines)


def test_fold_false_shows_every_epoch(forked: Lineage) -> None:
    assert len([line for line in rendered(forked, 80, fold=False) if "●" in line]) == len(forked.nodes)


def test_an_application_without_snapshots_has_a_message() -> None:
    empty = lineage_of("new", None, [], [])
    assert rendered(empty, 80) == ["new has no snapshots."]


def test_entry_names_the_ends_of_a_folded_run(forked: Lineage) -> None:
    (folded,) = [entry for entry in entries(forked) if entry.folded]
    assert (folded.oldest.epoch, folded.newest.epoch) == (5, 9)
