"""The lines of an artifact that define the nodes of its graph, and that they take no part in any comparison."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

from epochal.pipeline.artifact import load
from epochal.pipeline.description import GraphDescription, describe
from epochal.service.commands.fork import _with_what_was_analysed
from epochal.service.domain.comparison import compared
from examples.sdg import logistic_regression

MAIN = """
from epochal import Pipeline
from epochal.connectors import console, generator
from .parts.totals import totals

pipeline = Pipeline("made")
rows = pipeline.read("rows", generator.source({"a": "id"}))
kept = (
    rows.where("a > 1")
    .select(
        "a",
    )
)
totals(kept).write("out", console.sink())
"""
TOTALS = """
class Last:
    def __call__(self, batches):
        yield from batches


def totals(rows):
    counted = rows.key_by("a").aggregate("counts", seen="count(*)")
    return counted.map_arrow(Last(), "a bigint, seen bigint")
"""


def described(path: Path, **parameters: object) -> GraphDescription:
    return describe(load(path).graph(parameters))


def archive(path: Path, members: Mapping[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as opened:
        for name, text in members.items():
            opened.writestr(name, text)
    return path


def lines_of(graph: GraphDescription) -> dict[str, tuple[str | None, int] | None]:
    return {
        node.name: None if line is None else (line.file, line.line)
        for node, line in zip(graph.nodes, graph.lines, strict=True)
    }


def line_in(text: str, beginning: str) -> int:
    return next(number for number, line in enumerate(text.split("\n"), 1) if line.strip().startswith(beginning))


def test_nodes_have_the_innermost_line_of_the_archive(tmp_path: Path) -> None:
    path = archive(tmp_path / "made.zip", {"pipeline.py": MAIN, "parts/__init__.py": "", "parts/totals.py": TOTALS})
    assert lines_of(described(path)) == {
        "rows": ("pipeline.py", line_in(MAIN, "rows =")),
        "where(a > 1)": ("pipeline.py", line_in(MAIN, "rows.where")),
        "select(a)": ("pipeline.py", line_in(MAIN, ".select")),
        "counts": ("parts/totals.py", line_in(TOTALS, "counted =")),
        "map_arrow(Last)": ("parts/totals.py", line_in(TOTALS, "return counted")),
        "out": ("pipeline.py", line_in(MAIN, "totals(kept)")),
    }


def test_a_single_file_has_no_path(tmp_path: Path) -> None:
    code = """
    from epochal import Pipeline
    from epochal.connectors import console, generator

    def build():
        pipeline = Pipeline("made")
        exec(compile("rows = pipeline.read('rows', generator.source({'a': 'id'}))", "a text", "exec"),
             scope := {**globals(), "pipeline": pipeline})
        scope["rows"].write("out", console.sink())
        return pipeline
    """
    path = tmp_path / "any-name.py"
    path.write_text(dedent(code))
    lines = lines_of(described(path))
    assert lines["rows"] == (None, 7), "code from a text has the line that executes it"
    assert lines["out"] == (None, 9)


def test_operators_of_a_program_have_the_line_of_its_class(tmp_path: Path) -> None:
    path = tmp_path / "regression.py"
    path.write_text(Path(logistic_regression.__file__).read_text())
    graph = described(path)
    first = line_in(path.read_text(), "@program")
    found = lines_of(graph)
    assert found[graph.tables[0].operator if graph.tables else graph.scaled[0].operator] == (None, first)


def test_pipelines_outside_of_artifacts_have_no_lines() -> None:
    from epochal import Pipeline
    from epochal.connectors import console, generator

    pipeline = Pipeline("made")
    pipeline.read("rows", generator.source({"a": "id"})).write("out", console.sink())
    assert pipeline.graph().lines == (None, None)


def test_moved_code_is_the_same_graph(tmp_path: Path) -> None:
    """Only the lines differ: nodes, the meaning of state, what an upgrade compares, and what a fork reuses."""
    moved = {"pipeline.py": "\n\n\n" + MAIN, "parts/__init__.py": "", "parts/totals.py": "# Moved.\n\n\n" + TOTALS}
    before = described(archive(tmp_path / "before.zip", {**moved, "pipeline.py": MAIN, "parts/totals.py": TOTALS}))
    after = described(archive(tmp_path / "after.zip", moved))
    assert [line.line for line in after.lines if line] == [line.line + 3 for line in before.lines if line]
    assert after.model_dump(exclude={"lines"}) == before.model_dump(exclude={"lines"})
    assert compared(before, after, None) == compared(before, before, None)
    reused = _with_what_was_analysed(after, before.model_copy(update={"tables": ()}))
    assert reused is not None
    assert reused.lines == after.lines


def test_lines_do_not_change_the_equality_of_graphs(tmp_path: Path) -> None:
    from dataclasses import replace

    path = tmp_path / "made.py"
    path.write_text(MAIN.replace("from .parts.totals import totals", "totals = lambda rows: rows"))
    graph = load(path).graph()
    assert graph.lines
    assert replace(graph, lines=()) == graph
