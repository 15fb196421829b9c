"""Pictures for notebooks: layouts in layers, and SVG and HTML that is well-formed and contains no markup of names."""

from __future__ import annotations

import re
from itertools import combinations
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal import Pipeline
from epochal.connectors import console, generator
from epochal.drawing import texts
from epochal.drawing.graph import MOST_NODES, Node, graph_svg
from epochal.drawing.layered import Line, Placed, Size, place

SCRIPT = "<script>window.wrong=1</script>"
HOSTILE = (
    SCRIPT,
    "<img src=x onerror=window.wrong=1>",
    "\"' onload='window.wrong=1",
    "]]></title><script>",
    "&amp;&#x0;",
    "\u202eright to left",
    "x" * 500,
    "\x00\x1b[31m\ud800\uffff",
    "名前" * 60,
)
ALLOWED = {"svg", "g", "title", "rect", "path", "circle", "text", "tspan", "line", "polyline"}
ALLOWED |= {"div", "table", "caption", "thead", "tbody", "tr", "th", "td", "p", "span", "code"}
ACTIVE = re.compile(r"^on|^href$|^src$|^id$|^xlink")


def checked(picture: str) -> ElementTree.Element:
    """The picture as a document. It has no scripts, style sheets, ids, events or references, and is of limited size."""
    root = ElementTree.fromstring(picture)
    for element in root.iter():
        assert element.tag.rpartition("}")[2] in ALLOWED
        assert not any(ACTIVE.search(name) or "url(" in text for name, text in element.attrib.items())
    assert not set("".join(root.itertext())) & set("\u202e\x00\x1b\ud800\uffff")
    assert len(picture) < 400_000
    return root


def said(root: ElementTree.Element) -> str:
    """Visible text."""
    return " ".join(text for each in root.iter() if not each.tag.endswith("title") for text in [each.text or ""])


@st.composite
def sizes(draw: st.DrawFn) -> list[Size]:
    """Nodes of any size, with any earlier inputs."""
    number = draw(st.integers(0, 12))
    return [
        Size(
            draw(st.floats(10, 250)),
            draw(st.floats(10, 90)),
            tuple(draw(st.lists(st.integers(0, index - 1), max_size=3))) if index else (),
        )
        for index in range(number)
    ]


@given(sizes())
def test_nodes_do_not_overlap_and_stand_right_of_their_inputs(nodes: list[Size]) -> None:
    placed = place(nodes)
    assert len(placed.boxes) == len(nodes)
    for one, two in combinations(placed.boxes, 2):
        apart = one.right < two.left or two.right < one.left
        assert apart or abs(one.centre - two.centre) > (one.height + two.height) / 2
    for node, box in zip(nodes, placed.boxes, strict=True):
        assert all(placed.boxes[each].right < box.left for each in node.inputs)
        assert box.left >= 0 and box.right <= placed.width + 0.01
        assert box.centre - box.height / 2 >= -0.01 and box.centre + box.height / 2 <= placed.height + 0.01


@given(sizes())
def test_each_input_has_a_line_that_crosses_no_node(nodes: list[Size]) -> None:
    placed = place(nodes)
    expected = {(each, index) for index, node in enumerate(nodes) for each in node.inputs}
    assert sorted((line.source, line.target) for line in placed.lines) == sorted(expected)
    for line in placed.lines:
        first, last = line.points[0], line.points[-1]
        assert first == (placed.boxes[line.source].right, placed.boxes[line.source].centre)
        assert last == (placed.boxes[line.target].left, placed.boxes[line.target].centre)
        assert list(line.points) == sorted(line.points, key=lambda point: point[0])
        assert crossed(placed, line) == []


def crossed(placed: Placed, line: Line) -> list[int]:
    """Nodes other than its ends that a line touches."""
    found = []
    segments = list(zip(line.points, line.points[1:], strict=False))
    for index, box in enumerate(placed.boxes):
        if index in (line.source, line.target):
            continue
        for (left, before), (right, after) in segments:
            beside = right <= box.left or left >= box.right
            low, high = min(before, after), max(before, after)
            if not beside and low <= box.centre + box.height / 2 and high >= box.centre - box.height / 2:
                found.append(index)
    return found


@given(st.lists(st.lists(st.integers(-2, 12), max_size=3), max_size=12))
def test_any_inputs_are_laid_out(inputs: list[list[int]]) -> None:
    assert len(place([Size(50, 20, tuple(found)) for found in inputs]).boxes) == len(inputs)


def test_a_chain_is_straight_and_a_diamond_is_symmetric() -> None:
    chain = place([Size(50, 20), Size(90, 40, (0,)), Size(50, 20, (1,))])
    assert len({box.centre for box in chain.boxes}) == 1
    diamond = place([Size(50, 20), Size(50, 20, (0,)), Size(50, 20, (0,)), Size(50, 20, (1, 2))]).boxes
    assert diamond[0].centre == pytest.approx((diamond[1].centre + diamond[2].centre) / 2, abs=1)
    assert diamond[3].centre == pytest.approx(diamond[0].centre, abs=1)


@given(st.text(max_size=60))
def test_any_text_is_escaped(text: str) -> None:
    picture = graph_svg(text, [Node(text, "source", text, (), (text,), text), Node(text, "plain", text, (0,))])
    checked(picture)


def test_names_are_text_and_are_cut() -> None:
    nodes = [Node(name, "operator", name, (), (name,), name) for name in HOSTILE]
    root = checked(graph_svg("names", nodes))
    assert "<script>window.wrong=1</script>" in said(root) and "x" * 40 not in said(root)


def test_a_large_graph_is_cut_and_says_by_how_much() -> None:
    chain = [Node(f"node {index}", "operator", "map", (index - 1,) if index else ()) for index in range(1000)]
    root = checked(graph_svg("large", chain))
    assert f"… and {1000 - MOST_NODES} nodes more" in said(root)


def test_a_pipeline_is_drawn_before_it_is_complete_and_without_spark() -> None:
    pipeline = Pipeline("orders")
    assert "The graph has no nodes." in said(checked(pipeline._repr_html_()))
    rows = pipeline.read("rows", generator.source({"k": f"'{SCRIPT}'"}, rate=5)).where(f"k <> '{SCRIPT}'")
    counts = rows.key_by("k").aggregate("counts", n="count(*)", parallelism=3)
    root = checked(pipeline._repr_html_())
    assert "source generator rows" in said(root) and "aggregate counts by k 3 subtasks" in " ".join(said(root).split())
    counts.write("out", console.sink())
    assert "sink console out" in " ".join(said(checked(pipeline._repr_html_())).split())


def test_numbers_have_units() -> None:
    assert [texts.duration(each) for each in (0, 0.12, 2.44, 9.96, 95, 700, 7300, 2e5)] == [
        "0 ms", "120 ms", "2.4 s", "10 s", "95 s", "12 min", "2 h", "2 d",
    ]  # fmt: skip
    assert [texts.short(each) for each in (0, 9999, 10_000, 123_456, 999_600, 4.56e6, 2e12)] == [
        "0", "9,999", "10.0k", "123k", "1.00M", "4.56M", "2,000G",
    ]  # fmt: skip
    assert [texts.rate(each) for each in (0, 0.25, 9.96, 1234.5)] == [
        "0 rows/s", "0.2 rows/s", "10 rows/s", "1,234 rows/s",
    ]  # fmt: skip
    assert [texts.size(each) for each in (0, 812, 4300, 31 * 2**20, 2**50)] == [
        "0 B", "812 B", "4.2 KiB", "31 MiB", "1024.0 TiB",
    ]  # fmt: skip
