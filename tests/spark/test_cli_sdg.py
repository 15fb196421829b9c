"""``epochal sdg explain``: text, dot, svg and JSON of a program's dataflow, and refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from epochal.cli.graph_view import graph_tree
from epochal.cli.main import main
from epochal.pipeline.analysis import analyse
from epochal.pipeline.description import GraphDescription, describe
from epochal.pipeline.pipeline import served
from epochal.programs import translate
from epochal.programs.layout import Box, layout
from examples.sdg import collaborative_filtering
from examples.sdg.collaborative_filtering import CollaborativeFiltering
from examples.sdg.key_value_store import KeyValueStore
from examples.sdg.logistic_regression import LogisticRegression
from examples.sdg.word_count import WordCount

ROOT = Path(__file__).parents[2]
FILE = str(ROOT / "examples" / "sdg" / "collaborative_filtering.py")


def explained(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(["sdg", "explain", *arguments])
    assert end.value.code in (0, None)
    return capsys.readouterr().out


def test_text_shows_task_elements_with_their_lines(capsys: pytest.CaptureFixture[str]) -> None:
    text = explained(capsys, FILE)
    assert "state co_occurrence  partial Matrix[int]" in text
    assert re.search(r"update co_occurrence  lines \d+–\d+", text)
    assert "← read co_occurrence  all-to-one  scores" in text
    assert re.search(r"\d+ │     self\.co_occurrence\.add\(item, other, 1\)|\d+ │ .*add\(item, other, 1\)", text)


@pytest.mark.claim("SDG, figure 1")
def test_picture_in_the_docs_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    """It has the elements of figure 1 of the paper: five task elements, two state elements, five edges."""
    picture = explained(capsys, FILE, "--format", "svg")
    assert picture == (ROOT / "docs" / "images" / "collaborative_filtering.svg").read_text()
    root = ElementTree.fromstring(picture)
    classes = [each.get("class") for each in root.iter()]
    assert [classes.count(kind) for kind in ("task", "stage", "entry", "access")] == [5, 3, 2, 4]
    assert sum(str(each).startswith("edge") for each in classes) == 5


def test_dot_has_the_nodes_and_edges(capsys: pytest.CaptureFixture[str]) -> None:
    text = explained(capsys, FILE, "--format", "dot")
    assert '"recommend.read_user_item" -> "recommend.read_co_occurrence" [label="one-to-all\\nrow"]' in text
    assert text.count(" -> ") == 5 + 4 and text.count("shape=cylinder") == 2


def test_json_contains_the_whole_dataflow(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(explained(capsys, FILE, "--json"))
    assert [task["id"] for task in document["tasks"]][-1] == "recommend.merge"
    assert document["edges"][0]["fields"] == {"user": "bigint", "item": "bigint", "rating": "bigint"}
    assert document["stages"] == [
        {"element": "user_item", "tasks": [0, 2]},
        {"element": "co_occurrence", "tasks": [1, 3]},
        {"element": None, "tasks": [4]},
    ]


@pytest.mark.parametrize("program", [CollaborativeFiltering, KeyValueStore, LogisticRegression, WordCount])
def test_boxes_of_a_drawing_do_not_overlap(program: type) -> None:
    at = layout(translate(program))
    boxes = [*at.tasks.values(), *at.elements.values(), *at.entries.values()]
    for number, first in enumerate(boxes):
        assert first.x >= 0 and first.right <= at.width and first.y >= 0 and first.bottom <= at.height
        for second in boxes[:number]:
            assert not overlap(first, second)
    for first, second in zip(at.stages, at.stages[1:], strict=False):
        assert first.right < second.x


def overlap(first: Box, second: Box) -> bool:
    apart = first.right <= second.x or second.right <= first.x or first.bottom <= second.y or second.bottom <= first.y
    return not apart


def test_a_refused_program_prints_one_sentence_and_sets_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = "from __future__ import annotations\nfrom epochal.programs import *\n"
    body = "    n: Partial[Counter[str]]\n\n    @entry\n    def seen(self, word: str) -> None:\n        print(word)\n"
    file = tmp_path / "refused.py"
    file.write_text(f"{head}@program\nclass One:\n{body}@program\nclass Two:\n{body}")
    for arguments, message in (
        ([str(file), "--program", "One"], r"refused\.py, line 9: print is not on the list: .*\[unknown-call\]"),
        ([str(file)], r"has several programs; choose one with --program: One, Two"),
        ([str(file), "--program", "Three"], r"has no program 'Three'\. Programs of the file: One, Two"),
        ([str(ROOT / "examples" / "sdg" / "__init__.py")], r"has no program: decorate its class with @program"),
    ):
        with pytest.raises(SystemExit) as end:
            main(["sdg", "explain", *arguments])
        assert end.value.code == 1
        assert re.search(message, capsys.readouterr().err)


def drawn(graph: GraphDescription) -> str:
    """The graph as ``epochal check`` prints it."""
    console = Console(width=2000)
    with console.capture() as captured:
        console.print(graph_tree(graph))
    return captured.get()


def test_check_shows_a_program_as_its_author_wrote_it(spark: SparkSession, tmp_path: Path) -> None:
    """Entries below their input, state elements and results. No stages, and no columns between them."""
    for name in ("ratings", "asked"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.json").touch()
    parameters = collaborative_filtering.Parameters(input=str(tmp_path), output=str(tmp_path / "out"))
    description = analyse(collaborative_filtering.build(parameters).graph(), spark).description
    own = [node for node in description.nodes if node.type == "program" or "parameters" in node.description]
    assert len(own) == 5 and {node.columns for node in own} == {None}
    lines = [line.strip(" │├└─") for line in drawn(description).splitlines()]
    vector = "struct<indices:array<bigint>,values:array<bigint>>"
    answered = f"user bigint, at timestamp, value {vector}, error string"
    assert lines[2] == "add_rating(user bigint, item bigint, rating bigint)  entry of CollaborativeFiltering"
    assert lines[4:] == [
        f"recommend(user bigint) → {vector}  entry of CollaborativeFiltering",
        "CollaborativeFiltering  program",
        "state user_item  map: row bigint, column bigint → value bigint",
        "state co_occurrence  partial map: _group int, row bigint, column bigint → value bigint",
        f"results of recommend  append  {answered}",
        f"recommendations  files sink  path={parameters.output}, format=json  {answered}",
    ]


def test_check_shows_entries_that_are_called_from_outside() -> None:
    lines = [line.strip(" │├└─") for line in drawn(describe(served(KeyValueStore).graph())).splitlines()]
    called = "entry, called from outside"
    assert lines == [
        "key_value_store",
        "KeyValueStore  program",
        f"put(key string, value string)  {called}",
        f"get(key string) → string  {called}",
        f"delete(key string) → boolean  {called}",
        f"compare_and_set(key string, expected string, value string) → boolean  {called}",
    ]
