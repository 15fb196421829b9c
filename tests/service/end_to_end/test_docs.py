"""The pages under docs/: their Python runs, their tables are complete, and their links resolve."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

import epochal.testing
from epochal import Pipeline
from epochal.connectors import generator
from epochal.contracts.configuration import Autoscaling, Configuration
from epochal.contracts.source import SliceLimits
from epochal.errors import EpochalError
from epochal.pipeline.kinds import check_kinds, misfits
from epochal.service.api.openapi import WITHOUT_AN_ERROR
from epochal.testing.servers.control_plane import COMMAND
from tests.service.end_to_end.blocks import ROOT, Block, blocks_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGES = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))
EXAMPLES = ["examples/README.md", "examples/nexmark/README.md"]
ALL_PAGES = [*PAGES, "README.md", "CONTRIBUTING.md", "CHANGELOG.md", *EXAMPLES, "helm/README.md"]


def execute(blocks: list[Block], names: dict[str, Any]) -> dict[str, Any]:
    """Execute the blocks of a page in order."""
    for block in blocks:
        exec(block.code, names)  # type: ignore[call-overload]
    return names


@pytest.fixture
def reader_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.alternating(2)
def test_write_a_pipeline_page_runs(reader_folder: Path, spark: SparkSession) -> None:
    """The page ends with a harness that runs its function, and assertions."""
    names = execute(blocks_of("docs/how-to/write-a-pipeline.md", "python"), {"__name__": "authoring"})
    graph = names["pipeline"].graph()
    assert [node.name for node in graph.operators] == ["delays", "streaks", "totals"]


@pytest.mark.slow
@pytest.mark.alternating(2)
def test_operators_page_runs(reader_folder: Path, spark: SparkSession) -> None:
    names = execute(blocks_of("docs/reference/operators.md", "python"), {"__name__": "operators"})
    assert [node.operator.kind for node in names["steered"].graph().operators] == ["process_broadcast"]


@pytest.mark.slow
@pytest.mark.alternating(2)
def test_event_time_page_runs(reader_folder: Path, spark: SparkSession) -> None:
    execute(blocks_of("docs/reference/event-time.md", "python"), {"__name__": "time"})


@pytest.mark.slow
@pytest.mark.alternating(2)
def test_event_time_tutorial_runs(reader_folder: Path, spark: SparkSession) -> None:
    """Runs the windows, the join and the timers of the tutorial over a few rows, with its assertions."""
    names = execute(blocks_of("docs/tutorials/event-time.md", "python"), {"__name__": "shop"})
    assert names["counted"]


def test_sources_and_sinks_page_runs(reader_folder: Path) -> None:
    names = execute(blocks_of("docs/reference/sources-and-sinks.md", "python"), {})
    assert (names["flights"].kind, names["out"].kind, names["orders"].kind) == ("files", "files", "generator")


def test_streams_page_runs(reader_folder: Path) -> None:
    """All streams of the page fit together, and the combinations that it calls refused are refused."""
    names = execute(blocks_of("docs/reference/streams.md", "python"), {})
    check_kinds(names["pipeline"].graph())
    refused = Pipeline("refused")
    flights = refused.read("flights", generator.source({"origin": "''"}))
    delays = flights.key_by("origin").aggregate("delays", flights="count(*)")
    delays.key_by("flights").aggregate("histogram", airports="count(*)")
    assert "Operator 'histogram' accepts append" in misfits(refused.graph())[0]


def test_loops_page_runs(reader_folder: Path) -> None:
    """The loop of the page is closed, read and bounded, and records over the bound are written."""
    names = execute(blocks_of("docs/reference/loops.md", "python"), {"__name__": "loops"})
    graph = names["pipeline"].graph()
    check_kinds(graph)
    assert [(node.name, node.feedback.max_hops) for node in graph.loops] == [("messages", 50)]
    assert {node.name for node in graph.sinks} == {"labels", "dead"}


def test_programs_page_runs(reader_folder: Path) -> None:
    names = execute(blocks_of("docs/reference/programs.md", "python"), {"__name__": "programs"})
    assert [stage.element for stage in names["dataflow"].stages] == ["user_item", "co_occurrence", None]


@pytest.mark.slow
@pytest.mark.alternating(2)
def test_test_a_pipeline_page_runs(reader_folder: Path, spark: SparkSession) -> None:
    """Runs all Python of the page, and its tests as pytest does."""
    names = execute(blocks_of("docs/how-to/test-a-pipeline.md", "python"), {"__name__": "testing"})
    tests = [name for name in names if name.startswith("test_")]
    assert len(tests) == 4
    for name in tests:
        names[name]()
    assert "E4.manifest-written" in names["environment"]["EPOCHAL_FAULTS"]
    assert not names["plane"].process.running


@pytest.mark.slow
@pytest.mark.alternating(2)
def test_snapshot_is_readable_without_epochal(reader_folder: Path, spark: SparkSession) -> None:
    """The readers of docs/concepts/state.md, with and without Epochal, return the state of README's pipeline."""
    (pipeline,) = (block.text for block in blocks_of("README.md", "python") if block.text.startswith("# orders.py"))
    orders: dict[str, Any] = {}
    exec(pipeline.replace("rate=2000", "bound=30_000"), orders)
    configuration = {"compact_after_epochs": 2, "epoch_interval_seconds": 0, "max_records_per_epoch": 5000}
    orders["pipeline"].run(directory="run", configuration=configuration)

    names = execute(blocks_of("docs/concepts/state.md", "python"), {"spark": spark})
    expected = _spent(spark, 30_000)
    assert sorted(names["rows"]) == expected
    rows_now = names["rows_now"].select("customer", "orders", "total").collect()
    assert sorted(tuple(row) for row in rows_now) == expected


def _spent(spark: SparkSession, bound: int) -> list[tuple[int, int, int]]:
    """The aggregate of README in plain Spark, over the same rows: customer, orders, total."""
    columns = {"customer": "noise % 1000", "amount": "noise % 90 + 10"}
    source = generator.source(columns, bound=bound).make()
    source.restore(None, [])
    slice = source.plan(SliceLimits(bound))
    assert slice is not None
    counted = source.read(spark, slice).where("amount >= 20").groupBy("customer")
    return sorted(tuple(row) for row in counted.agg(F.count("*"), F.sum("amount")).collect())


def test_every_error_is_documented() -> None:
    """docs/reference/errors.md lists exactly the existing slugs."""
    # Error classes register with their base class when they are imported.
    for module in pkgutil.walk_packages(epochal.__path__, "epochal."):
        if ".migrations" not in module.name and not module.name.endswith("__main__"):
            importlib.import_module(module.name)

    def slugs(kind: type[EpochalError]) -> set[str]:
        own = {kind.slug} if kind.__module__.startswith("epochal.") else set()
        return own.union(*map(slugs, kind.__subclasses__()))

    documented = set(re.findall(r"^\| `([a-z-]+)` \|", (ROOT / "docs/reference/errors.md").read_text(), re.MULTILINE))
    assert documented == slugs(EpochalError) | WITHOUT_AN_ERROR | {"method-not-allowed"}


def test_every_testing_module_is_documented() -> None:
    page = (ROOT / "docs/how-to/test-a-pipeline.md").read_text()
    modules = {module.name for module in pkgutil.iter_modules(epochal.testing.__path__)}
    assert {name for name in modules if not re.search(rf"[`.]{name}[`.(]", page)} == set()


def test_every_application_setting_is_documented_with_its_default() -> None:
    page = (ROOT / "docs/operations/running.md").read_text()
    rows = dict(re.findall(r"^\| `([a-z_]+)` \| ([^|]+?) \|", page, re.MULTILINE))
    defaults = Configuration().model_dump()
    for name, default in defaults.items():
        if name == "restart":
            for inner, value in default.items():
                assert f"`restart.{inner}` {value}" in page
        else:
            shown = "none" if default in (None, {}, ()) else str(default)
            assert rows[name] == shown, name
    assert set(rows) == set(defaults)
    for inner, field in Autoscaling.model_fields.items():
        assert f"| `autoscaling.{inner}` | {'to be set' if field.is_required() else field.default} |" in page


@pytest.mark.parametrize("page", ALL_PAGES)
def test_links_resolve(page: str) -> None:
    """Links to files and to headings."""
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    broken = []
    for path, heading in re.findall(r"\]\(([^)#:\s]*)(?:#([^)]*))?\)", text):
        target = (ROOT / page).parent / path if path else ROOT / page
        if not target.exists() or (heading and heading not in anchors(target)):
            broken.append(f"{path}#{heading}")
    assert broken == []


def anchors(page: Path) -> set[str]:
    """Fragments of the headings of a page, as Git hosts derive them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    titles = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.fixture(scope="module")
def help_text() -> str:
    """Output of ``epochal --help``."""
    return subprocess.run([COMMAND, "--help"], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("page", ALL_PAGES)
def test_pages_name_existing_commands(page: str, help_text: str) -> None:
    for block in blocks_of(page, "console"):
        for command in block.commands:
            program, verb, *_ = command.split()
            if program == "epochal":
                assert re.search(rf"\b{verb}\b", help_text), f"{block}: {command}"
