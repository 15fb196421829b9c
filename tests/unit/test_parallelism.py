"""Numbers of subtasks of single operators: declared, configured, and given on the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
import typer
from pydantic import ValidationError

from epochal import KeyedProcess, PartialProcess, Pipeline, Stream, tumbling
from epochal.cli.versions import numbers_of_subtasks
from epochal.connectors import console, files, generator
from epochal.contracts.configuration import Autoscaling, Configuration
from epochal.contracts.measurements import Work
from epochal.engine.job import Participants
from epochal.engine.load import RecentLoad
from epochal.engine.program import changes_since
from epochal.errors import OptionError, PipelineError
from epochal.pipeline.description import GraphDescription, describe
from epochal.pipeline.parallelism import check_operators, check_parallelism
from epochal.service.catalog.projects import most_subtasks
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.store import SnapshotStore
from epochal.wire.configuration import merged_configuration
from epochal.wire.versions import Rescale
from tests.kit.manifests import plain_manifest
from tests.kit.programs import program_of


class Last(KeyedProcess):
    output = "k bigint"

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        yield (key.k,)


class Questions(PartialProcess):
    output = "n bigint"
    answer = "n bigint"

    def process(self, rows: Any, ctx: Any) -> Any: ...

    def process_global(self, request: Any, ctx: Any) -> Any: ...

    def merge(self, request: Any, answers: Any, ctx: Any) -> Any: ...


def rows() -> tuple[Pipeline, Stream]:
    pipeline = Pipeline("scaled")
    return pipeline, pipeline.read("rows", generator.source({"k": "id", "v": "id", "at": "timestamp_micros(id)"}))


def scaled() -> Pipeline:
    """Operator ``fixed`` declares four subtasks, ``usual`` none."""
    pipeline, stream = rows()
    stream.key_by("k").aggregate("fixed", n="count(*)", parallelism=4).write("a", console.sink())
    stream.key_by("v").aggregate("usual", n="count(*)").write("b", console.sink())
    return pipeline


DECLARING: dict[str, Callable[[Stream, Any], object]] = {
    "aggregate": lambda rows, n: rows.key_by("k").aggregate("it", n="count(*)", parallelism=n),
    "process": lambda rows, n: rows.key_by("k").process(Last, "it", parallelism=n),
    "distinct": lambda rows, n: rows.key_by("k").distinct("it", parallelism=n),
    "drop_duplicates": lambda rows, n: rows.drop_duplicates("k", name="it", parallelism=n),
    "top": lambda rows, n: rows.key_by("k").top(3, "v", "it", parallelism=n),
    "window": lambda rows, n: timed(rows).aggregate("it", n="count(*)", parallelism=n),
    "window top": lambda rows, n: timed(rows).top(3, "v", "it", parallelism=n),
    "join": lambda rows, n: rows.join(rows.latest("k", order_by="v"), on="k", name="it", parallelism=n),
}


def timed(rows: Stream) -> Any:
    return rows.with_watermark("at", "10 seconds").key_by("k").window(tumbling("1 minute"))


@pytest.mark.parametrize("verb", DECLARING)
def test_every_verb_declares_a_number_of_subtasks(verb: str) -> None:
    pipeline, stream = rows()
    DECLARING[verb](stream, 7)
    graph = pipeline.graph()
    assert graph.subtasks(Configuration(parallelism=3)) == {"it": 7}
    assert graph.subtasks(Configuration(parallelism=3, parallelisms={"it": 5})) == {"it": 5}
    (shown,) = [node for node in describe(graph).nodes if node.name == "it"]
    assert shown.description["parallelism"] == 7


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (0, "parallelism is 0: an operator has at least one subtask"),
        (-1, "parallelism is -1: an operator has at least one subtask"),
        (2.0, "parallelism is 2.0: give the number of subtasks"),
        (True, "parallelism is True: give the number of subtasks"),
        ("count(*)", r"parallelism is count\(\*\): .* A column of this name must be renamed"),
    ],
)
def test_wrong_declarations_are_refused(number: Any, message: str) -> None:
    _, stream = rows()
    with pytest.raises(PipelineError, match=f"Operator 'it': {message}"):
        stream.key_by("k").aggregate("it", n="count(*)", parallelism=number)


def test_a_join_with_a_table_has_no_subtasks() -> None:
    pipeline, stream = rows()
    names = pipeline.table("names", files.table("/names", format="parquet"))
    with pytest.raises(PipelineError, match=r"join\(\) with a table takes no parallelism="):
        stream.join(names, on="k", parallelism=3)


def test_configured_numbers_override_declared_ones() -> None:
    graph = scaled().graph()
    assert graph.subtasks(Configuration(parallelism=2)) == {"fixed": 4, "usual": 2}
    configuration = Configuration(parallelism=2, parallelisms={"fixed": 3, "usual": 16})
    assert graph.subtasks(configuration) == {"fixed": 3, "usual": 16}
    stored, plain = describe(graph).model_dump(mode="json"), Configuration(parallelism=2).stored()
    assert most_subtasks(configuration.stored(), stored) == 16
    assert (most_subtasks(plain, stored), most_subtasks(plain, None)) == (4, 2)
    assert most_subtasks(Configuration(parallelisms={"fixed": 3}).stored(), stored) == 3
    described = GraphDescription.model_validate_json(describe(graph).model_dump_json())
    assert described.subtasks(configuration) == {"fixed": 3, "usual": 16}
    assert described.scaled == graph.scaled


def test_unknown_operators_and_too_many_subtasks_are_refused() -> None:
    graph = scaled().graph()
    with pytest.raises(OptionError, match=r"no operator 'usul'.* Did you mean 'usual'"):
        check_parallelism(graph.scaled, Configuration(parallelisms={"usul": 3}))
    with pytest.raises(PipelineError, match="Operator 'fixed': parallelism 4 is above max_parallelism 3"):
        check_parallelism(graph.scaled, Configuration(max_parallelism=3))
    check_parallelism(graph.scaled, Configuration(max_parallelism=3, parallelisms={"fixed": 3}))
    with pytest.raises(ValidationError, match=r"parallelisms.usual 129 is above max_parallelism 128"):
        Configuration(parallelisms={"usual": 129})
    for number in (0, -2, "many", 2.5):
        with pytest.raises(ValidationError):
            Configuration.model_validate({"parallelisms": {"usual": number}})


def test_numbers_that_autoscaling_has_set_do_not_prevent_the_removal_of_an_operator() -> None:
    configuration = Configuration(autoscaling=Autoscaling(greatest=8, per_operator=True), parallelisms={"old": 3})
    graph = scaled().graph()
    check_parallelism(graph.scaled, configuration)
    with pytest.raises(OptionError, match="no operator 'old'"):
        check_operators(graph.scaled, ["fixed", "old"])


def test_a_merge_has_the_number_of_its_instances() -> None:
    pipeline, stream = rows()
    stream.process_partial(Questions, "asked", requests=stream.where("v > 1"), parallelism=5)
    graph = pipeline.graph()
    assert graph.subtasks(Configuration()) == {"asked": 5, "asked-merge": 5}
    assert graph.subtasks(Configuration(parallelisms={"asked": 3})) == {"asked": 3, "asked-merge": 3}
    assert describe(graph).subtasks(Configuration()) == {"asked": 5, "asked-merge": 5}
    with pytest.raises(OptionError, match=r"'asked-merge' has the number of subtasks of 'asked'"):
        check_parallelism(graph.scaled, Configuration(parallelisms={"asked-merge": 3}))


def test_a_rescaling_changes_given_numbers_and_removes_null() -> None:
    before = Configuration(parallelisms={"fixed": 3, "usual": 16}).stored()
    changed = merged_configuration(before, Rescale(parallelisms={"fixed": None, "usual": 8}).changes)
    assert (changed.parallelism, changed.parallelisms) == (2, {"usual": 8})
    changed = merged_configuration(before, Rescale(parallelism=4).changes)
    assert (changed.parallelism, changed.parallelisms) == (4, {"fixed": 3, "usual": 16})
    with pytest.raises(ValidationError, match="give parallelism, parallelisms, or both"):
        Rescale()
    with pytest.raises(OptionError, match=r"parallelisms.fixed 300 is above max_parallelism 128"):
        merged_configuration(before, Rescale(parallelisms={"fixed": 300}).changes)


def test_the_command_line_takes_the_number_of_the_application_and_those_of_operators() -> None:
    assert numbers_of_subtasks(["8"]) == (8, {})
    assert numbers_of_subtasks(["spent=16", "streaks=4"]) == (None, {"spent": 16, "streaks": 4})
    assert numbers_of_subtasks(["8", "spent=default"]) == (8, {"spent": None})
    for wrong in (["0"], ["-1"], ["many"], ["spent="], ["spent=0"], ["spent=x"], ["=3"], ["8", "9"], ["a=1", "a=2"]):
        with pytest.raises(typer.BadParameter):
            numbers_of_subtasks(wrong)


def test_manifests_name_the_operators_with_another_number() -> None:
    manifest = plain_manifest(1, parallelism=2, parallelisms={"spent": 16})
    read = Manifest.decode(manifest.encode(), "there")
    assert (read.parallelism_of("spent"), read.parallelism_of("streaks")) == (16, 2)


def test_the_load_of_an_application_is_that_of_operators_with_its_number() -> None:
    seconds = 0.0
    load = RecentLoad(lambda: seconds)
    work = {"usual": [Work(5, 2.0)] * 2, "own": [Work(5, 4.0)] * 5}
    load.ran(1, 1, 2, work)
    load.ran(2, 1, 2, work)
    seconds = 20.0
    load.between_epochs(lambda: None)
    found = load.report()
    assert found is not None and found.samples[0].busy_seconds == 4
    assert found.busy_share == (2 + 4) / 20
    assert {name: operator.subtasks for name, operator in found.operators.items()} == {"usual": 2, "own": 5}


def test_changed_numbers_are_recorded_by_operator() -> None:
    store = SnapshotStore(f"memory://{uuid4().hex}")

    def recorded(before: dict[str, Any], **after: Any) -> list[dict[str, Any]]:
        artifact = "a" * 64
        head = store.write_manifest(plain_manifest(1, artifact=artifact, max_parallelism=128, **before))
        operators: Any = {"spent": None, "streaks": None}
        program = program_of(Configuration(**after), Participants(operators=operators), artifact=artifact)
        return [change.detail for change in changes_since(store, head, program)]

    assert recorded({"parallelism": 2}, parallelism=2) == []
    assert recorded({"parallelism": 2}, parallelism=8) == [{"parallelism": [2, 8]}]
    assert recorded({"parallelism": 2}, parallelism=2, parallelisms={"spent": 16}) == [
        {"parallelisms": {"spent": [2, 16]}}
    ]
    assert recorded({"parallelism": 2, "parallelisms": {"spent": 16}}, parallelism=4) == [
        {"parallelism": [2, 4], "parallelisms": {"spent": [16, 4]}}
    ]
    own = {"parallelisms": {"spent": 16}}
    assert recorded({"parallelism": 2, **own}, parallelism=4, **own) == [{"parallelism": [2, 4]}]
