"""Drawings in the terminal: lanes of graphs, charts, and the page of ``show --plot``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from epochal.cli.plot_view import Plot
from epochal.client.graphs import ApplicationGraph
from epochal.client.models import Epoch, Load, StateTable
from epochal.drawing.bars import bar, columns
from epochal.drawing.lanes import Glyph, Item, Row, rows, topological
from epochal.wire.versions import GraphAnswer

NOW = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)
HOSTILE = ("<script>alert(1)</script>", "[bold red]not markup[/]", "\u202eright to left", "x" * 500, "\x1b[31mred\x00")


@st.composite
def graphs(draw: st.DrawFn) -> list[tuple[int, ...]]:
    """For each item, the later items to which it leads."""
    size = draw(st.integers(0, 14))
    return [
        tuple(draw(st.lists(st.integers(index + 1, size - 1), max_size=3))) if index + 1 < size else ()
        for index in range(size)
    ]


@given(graphs())
def test_lines_lead_from_each_item_to_its_targets_and_to_no_other(graph: list[tuple[int, ...]]) -> None:
    drawn = rows([Item(targets) for targets in graph])
    assert [row.item for row in drawn if row.item is not None] == list(range(len(graph)))
    for index, targets in enumerate(graph):
        start = next(number for number, row in enumerate(drawn) if row.item == index)
        assert reached(drawn, start, drawn[start].lane) == set(targets)


def reached(drawn: Sequence[Row], row: int, lane: int) -> set[int]:
    """Items at which the lines that leave a cell downwards arrive, according to the drawing alone."""
    if row + 1 == len(drawn) or lane >= len(drawn[row + 1].cells):
        return set()
    below = drawn[row + 1]
    match below.cells[lane].glyph:
        case Glyph.ITEM:
            assert below.item is not None
            return {below.item}
        case Glyph.LINE | Glyph.CROSS:
            return reached(drawn, row + 1, lane)
        case Glyph.JOIN:
            begun = [
                number
                for number, cell in enumerate(below.cells)
                if number > lane and cell.glyph in (Glyph.TEE_DOWN, Glyph.BEGIN)
            ]
            return reached(drawn, row + 1, lane).union(*(reached(drawn, row + 1, number) for number in begun))
        case Glyph.END | Glyph.TEE:
            (joined,) = (number for number, cell in enumerate(below.cells) if cell.glyph is Glyph.JOIN)
            return reached(drawn, row + 1, joined)
        case _:
            return set()


@given(st.lists(st.lists(st.integers(-2, 16), max_size=3), max_size=14))
def test_any_inputs_are_put_in_order_and_inputs_without_a_cycle_come_first(inputs: list[list[int]]) -> None:
    order = topological(inputs)
    assert sorted(order) == list(range(len(inputs)))
    if all(each < index for index, found in enumerate(inputs) for each in found):
        place = {index: position for position, index in enumerate(order)}
        assert all(place[each] < place[index] for index, found in enumerate(inputs) for each in found if each >= 0)


def test_columns_and_bars_show_small_values() -> None:
    assert columns([0, 1, 50, 100, None], 2, 100) == ["   █ ", " ▁██ "]
    assert columns([0, 100], 1, 100, ascii_only=True) == [" #"]
    assert (bar(0.5, 4), bar(0.001, 4), bar(2, 4), bar(0.5, 4, ascii_only=True)) == ("██  ", "▏   ", "████", "##  ")


def node(id: int, name: str, type: str, *inputs: int, **description: Any) -> dict[str, Any]:
    return {"id": id, "name": name, "type": type, "inputs": inputs, "description": description}


def shop(**more: Any) -> ApplicationGraph:
    graph = {
        "name": "shop",
        "nodes": [
            node(0, "orders", "source", kind="kafka"),
            node(1, "visits", "source", kind="files"),
            node(2, "where", "transform", 0),
            node(3, "spending", "aggregate", 2, keys=["customer"]),
            node(4, "both", "join", 2, 1, keys=["customer"]),
            node(5, "customers", "sink", 3, kind="files"),
            node(6, "joined", "sink", 4, kind="console"),
        ],
        "sinks": {},
        **more,
    }
    load = {
        "application": "shop",
        "reported_at": NOW,
        "version": 1,
        "parallelism": 2,
        "epoch": 12,
        "seconds": 60.0,
        "busy_share": 0.4,
        "lag_seconds": 3.0,
        "operators": {
            "spending": {"subtasks": 2, "rows": 60_000, "busy_seconds": 48.0},
            "both": {"subtasks": 2, "rows": 90, "busy_seconds": 0.3, "skewed": True},
        },
        "sources": {"orders": {"rows": 120_000, "records": 7, "files": None, "seconds": 3.0, "reachable": True}},
        "sinks": {"customers": {"rows": 6000, "blocked_since": None}},
        "tables": {"totals": {"rows": 1000, "bytes": 4096}},
        "autoscaling": None,
    }
    table = {
        "table": "totals",
        "operator": "spending",
        "kind": "aggregate",
        "scope": "keyed",
        "key": [{"name": "customer", "type": "bigint"}],
        "sub_key": [],
        "value": [],
        "queryable": True,
        "rows": 1000,
        "branch": "shop",
        "epoch": 12,
    }
    return ApplicationGraph(
        "shop", GraphAnswer.model_validate(graph), Load.model_validate(load), [StateTable.model_validate(table)]
    )


def epochs() -> list[Epoch]:
    """Newest first. The last but one took eight seconds."""
    return [
        Epoch(
            branch="shop",
            epoch=number,
            attempt=1,
            state="committed",
            rows_in=number * 100,
            rows_out=None,
            state_rows=7,
            started_at=NOW,
            committed_at=NOW + timedelta(seconds=8 if number == 11 else 1),
        )
        for number in range(12, 0, -1)
    ]


def plotted(graph: ApplicationGraph, width: int = 100, encoding: str = "utf-8", **options: Any) -> list[str]:
    class Terminal(StringIO):
        @property
        def encoding(self) -> str:  # type: ignore[override]
            return encoding

    console = Console(file=Terminal(), width=width, **({"no_color": True} | options))
    console.print(Plot(graph, epochs(), NOW))
    written = console.file
    assert isinstance(written, StringIO)
    return [line.rstrip() for line in written.getvalue().splitlines()]


def test_the_plot_shows_the_graph_with_its_figures_and_the_epochs() -> None:
    lines = plotted(shop(), 110)
    assert lines[1] == "graph, mean of the last 60 s, 3.0 s behind, as of just now"
    assert lines[2].split() == ["●", "orders", "source", "kafka", "2,000", "rows/s", "3.0", "s", "behind"]
    spending = next(line for line in lines if "spending" in line)
    assert "■" in spending and "aggregate by customer" in spending and "1,000 rows/s" in spending
    assert "███▎     40 % busy" in spending and "1,000 rows, 4.0 KiB" in spending and spending.endswith("slowest")
    both = next(line for line in lines if "both" in line)
    assert "1.5 rows/s" in both and "0.2 % busy" in both and both.endswith("skewed")
    chart = lines[lines.index("epochs 1 to 12, oldest left") + 1 :]
    assert chart[0].startswith("duration") and chart[0].endswith("at most 8.0 s") and chart[2].endswith("latest 1.0 s")
    assert chart[0].split()[1] == "█" and chart[0].index("█") - len("duration ") == 10
    assert [line.split("  ")[0] for line in chart if line[:1].isalpha()] == ["duration", "rows in", "changed"]
    assert chart[3].endswith("at most 1,200 rows")


@pytest.mark.parametrize("width", [30, 60, 80, 160])
def test_the_plot_fits_the_terminal(width: int) -> None:
    assert all(len(line) <= width for line in plotted(shop(), width))
    assert any("●" in line and "orders" in line for line in plotted(shop(), width))


def test_the_plot_is_ascii_without_unicode_and_has_no_colour_where_none_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert all(line.isascii() for line in plotted(shop(), encoding="ascii"))
    assert "\x1b[" in "".join(plotted(shop(), no_color=False, force_terminal=True))
    assert "\x1b[" not in "".join(plotted(shop(), no_color=False))
    monkeypatch.setenv("NO_COLOR", "1")
    coloured = Console(file=StringIO(), force_terminal=True, width=100)
    coloured.print(Plot(shop(), epochs(), NOW))
    assert isinstance(coloured.file, StringIO)
    assert "\x1b[3" not in coloured.file.getvalue()


def test_hostile_names_are_plain_and_short_text() -> None:
    nodes = [node(index, name, "source", kind=name) for index, name in enumerate(HOSTILE)]
    lines = plotted(shop(nodes=nodes), 100, no_color=False)
    text = "\n".join(lines)
    assert "<script>alert(1)</script>" in text and "[bold red]not markup[/]" in text
    assert "\u202e" not in text and "\x1b" not in text and "\x00" not in text and "x" * 40 not in text
    assert all(len(line) <= 100 for line in lines)


def test_a_large_graph_is_cut_and_says_by_how_much() -> None:
    nodes = [node(index, f"n{index}", "source") for index in range(1000)]
    lines = plotted(shop(nodes=nodes))
    assert any(line == "… and 800 nodes more" for line in lines) and len(lines) < 450


def test_a_stopped_application_has_a_graph_without_rates() -> None:
    stopped = ApplicationGraph("shop", shop().graph, None, ())
    assert plotted(stopped)[1] == "graph; no rates, because the application does not run"
    assert plotted(ApplicationGraph("shop", None, None, ()))[2] == "The version has no graph."
