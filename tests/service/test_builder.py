"""The builder with real subprocesses: results, errors in artifacts, and hostile code."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from epochal.contracts.configuration import Configuration
from epochal.errors import (
    ArtifactError,
    EpochalError,
    ParameterError,
    PipelineError,
    StoreRefuses,
    StoreUnavailable,
)
from epochal.service.composition import subprocess_builder
from epochal.service.domain.building import BuildAnswer, BuildError, BuildRequest
from epochal.service.domain.ports import Meanwhile
from epochal.service.domain.settings import Settings
from epochal.service.runtime.builder import asking
from epochal.service.runtime.builder.asking import AskingBuilder
from epochal.service.runtime.builder.subprocess_builder import SubprocessBuilder
from tests.kit.waiting import eventually

PIPELINE = """
    from pydantic import BaseModel
    from epochal import Pipeline
    from epochal.connectors import files

    class Parameters(BaseModel):
        input: str
        output: str

    def build(parameters: Parameters) -> Pipeline:
        pipeline = Pipeline("words")
        words = pipeline.read("words", files.source(parameters.input, format="json", schema="word string, n int"))
        words.key_by("word").aggregate("counts", n="sum(n)").write("out", files.sink(parameters.output, mode="updates"))
        return pipeline
"""


@pytest.fixture(scope="module")
def builder() -> Iterator[SubprocessBuilder]:
    made = SubprocessBuilder()
    made.open()
    yield made
    made.close()


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    return write(tmp_path, PIPELINE)


def write(folder: Path, code: str) -> Path:
    path = folder / "pipeline.py"
    path.write_text(dedent(code))
    return path


def parameters(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "in").mkdir(exist_ok=True)
    return {"input": str(tmp_path / "in"), "output": str(tmp_path / "out")}


def test_describe_returns_the_nodes_and_sinks_of_a_pipeline(
    builder: SubprocessBuilder, artifact: Path, tmp_path: Path
) -> None:
    graph = builder.describe("default", artifact, parameters(tmp_path))
    assert graph.name == "words"
    assert [node.type for node in graph.nodes] == ["source", "aggregate", "sink"]
    assert graph.sinks == {"out": f"files:{tmp_path / 'out'}"}
    assert graph.tables is None


def test_relative_paths_are_refused(builder: SubprocessBuilder, artifact: Path, tmp_path: Path) -> None:
    given = parameters(tmp_path)
    for name, place in {"input": "Source 'words'", "output": "Sink 'out'"}.items():
        with pytest.raises(PipelineError, match=rf"{place}: the path 'here/\*' is relative, .* Use an absolute path"):
            builder.describe("default", artifact, {**given, name: "here/*"})
    assert builder.describe("default", artifact, {**given, "output": "~/out"}).sinks["out"].startswith("files:/")


@pytest.mark.slow
@pytest.mark.long
def test_analyse_returns_state_tables_with_their_columns(
    builder: SubprocessBuilder, artifact: Path, tmp_path: Path
) -> None:
    graph = builder.analyse("default", artifact, parameters(tmp_path), Configuration())
    assert graph.tables is not None
    assert [(table.id, [column.type for column in table.value]) for table in graph.tables] == [("counts", ["bigint"])]


@pytest.mark.slow
@pytest.mark.alternating(2)
def test_analyse_reports_errors_of_sparks_analysis(builder: SubprocessBuilder, tmp_path: Path) -> None:
    wrong = write(tmp_path, PIPELINE.replace('key_by("word")', 'key_by("wrod")'))
    with pytest.raises(PipelineError, match="wrod"):
        builder.analyse("default", wrong, parameters(tmp_path), Configuration())


def test_missing_parameters_are_named(builder: SubprocessBuilder, artifact: Path) -> None:
    with pytest.raises(ParameterError, match="output"):
        builder.describe("default", artifact, {"input": "somewhere"})


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("x = 1", "defines no pipeline"),
        ("def build(:", "line 1"),
        ("1 / 0", "line 1: ZeroDivisionError"),
        ("import no_such_module_at_all", "no_such_module_at_all"),
        ("raise SystemExit(3)", "exits the process"),
    ],
)
def test_errors_in_code_are_reported_with_their_line(
    builder: SubprocessBuilder, tmp_path: Path, code: str, expected: str
) -> None:
    with pytest.raises(ArtifactError, match=expected):
        builder.describe("default", write(tmp_path, code), {})


def test_a_missing_artifact_is_reported(builder: SubprocessBuilder, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="does not exist"):
        builder.describe("default", tmp_path / "none.py", {})


def test_code_may_write_to_standard_output(builder: SubprocessBuilder, tmp_path: Path) -> None:
    path = write(tmp_path, "print('{}' * 1000)\n" + dedent(PIPELINE))
    assert builder.describe("default", path, parameters(tmp_path)).name == "words"


def test_code_that_exits_or_hangs_does_not_affect_other_builds(
    builder: SubprocessBuilder, artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    with pytest.raises(PipelineError, match="ended its process"):
        builder.describe("default", write(bad, "import os; os._exit(9)"), {})
    monkeypatch.setattr(asking, "DESCRIBE_SECONDS", 0.5)
    with pytest.raises(PipelineError, match="took over"):
        builder.describe("default", write(bad, "while True: pass"), {})
    monkeypatch.undo()
    assert builder.describe("default", artifact, parameters(tmp_path)).name == "words"


def test_the_memory_of_code_is_limited(builder: SubprocessBuilder, tmp_path: Path) -> None:
    with pytest.raises((ArtifactError, PipelineError), match=r"[Mm]emory"):
        builder.describe("default", write(tmp_path, f"x = bytearray({8 << 30})"), {})


ANSWERING = """
    import os, stat
    for number in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                {answer}
        except OSError:
            pass
    os._exit(0)
"""


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("os.write(number, b'nonsense')", "answered in the builder's place"),
        ("""os.write(number, b'{"error": {"slug": "unauthenticated", "message": "forged"}}')""", "forged"),
        ("while True: os.write(number, bytes(1 << 16))", "too much memory"),
    ],
)
def test_forged_answers_of_code_are_refused(
    builder: SubprocessBuilder, tmp_path: Path, answer: str, message: str
) -> None:
    with pytest.raises(PipelineError, match=message):
        builder.describe("default", write(tmp_path, ANSWERING.format(answer=answer)), {})


def test_an_error_of_code_is_bounded_and_excludes_printed_text(builder: SubprocessBuilder, tmp_path: Path) -> None:
    code = """
        import sys
        print("printed")
        sys.stderr.write("on stderr")
        raise ValueError("\\x1b[2J first " + "x" * 100_000 + " last")
    """
    with pytest.raises(
        ArtifactError, match=r"line 5: ValueError: \[2J first x+\n.. \d+ characters are left out"
    ) as raised:
        builder.describe("default", write(tmp_path, code), {})
    assert len(raised.value.message) < 5000 and raised.value.message.endswith("x last")
    assert "printed" not in raised.value.message and "on stderr" not in raised.value.message


def test_code_cannot_read_secrets_of_the_control_plane(
    tmp_path: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPOCHAL_DATABASE_PASSWORD", "secret")
    made = SubprocessBuilder()
    made.open()
    try:
        with pytest.raises(ArtifactError, match="seen: False"):
            made.describe(
                "default",
                write(tmp_path, "import os\nraise ValueError(f\"seen: {'secret' in os.environ.values()}\")"),
                {},
            )
    finally:
        made.close()


@pytest.mark.parametrize(("store", "seen"), [("s3://bucket/epochal", "of-s3"), ("", "None")])
def test_code_has_the_variables_of_an_object_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, seen: str
) -> None:
    """Trials and rekeys read and write the store."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-s3")
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", "of-google")
    settings = Settings(data=tmp_path / "home", store=store or None, warm_drivers=0)
    settings.home_directory.mkdir(parents=True)
    made = subprocess_builder(settings, None)
    made.open()
    code = """
        import os
        raise ValueError(f"{os.environ.get('AWS_SECRET_ACCESS_KEY')}; {os.environ.get('GOOGLE_SERVICE_ACCOUNT_KEY')}")
    """
    try:
        with pytest.raises(ArtifactError, match=f"{seen}; None"):
            made.describe("default", write(tmp_path, code), {})
    finally:
        made.close()


@pytest.mark.alternating(2)
def test_a_killed_builder_process_is_replaced(artifact: Path, tmp_path: Path) -> None:
    made = SubprocessBuilder()
    made.open()
    try:
        assert made.describe("default", artifact, parameters(tmp_path)).name == "words"
        assert made._process is not None
        os.kill(made._process.pid, signal.SIGKILL)
        made._process.wait()
        assert made.describe("default", artifact, parameters(tmp_path)).name == "words"
    finally:
        made.close()


HOLDING = """
    import fcntl, time
    lock = open({lock!r}, "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    time.sleep(600)
"""
DESCRIBING = """
from pathlib import Path
from epochal.service.runtime.builder.subprocess_builder import SubprocessBuilder
builder = SubprocessBuilder()
builder.open()
builder.describe("default", Path({artifact!r}), {{}})
"""


def test_a_build_ends_with_its_control_plane(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    artifact = write(tmp_path, HOLDING.format(lock=str(lock)))
    control_plane = subprocess.Popen([sys.executable, "-c", DESCRIBING.format(artifact=str(artifact))])
    eventually(lambda: is_held(lock), 60)
    control_plane.kill()
    control_plane.wait()
    eventually(lambda: not is_held(lock), 10)  # well before the time limit of a build


def is_held(lock: Path) -> bool:
    if not lock.exists():
        return False
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_a_build_has_the_secrets_of_its_own_project_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of the process from which it is forked is readable, so it contains no secrets either."""
    monkeypatch.setenv("EPOCHAL_SECRET_KAFKA", "of-default")
    monkeypatch.setenv("EPOCHAL_PROJECT_PRICING_SECRET_KAFKA", "of-pricing")
    code = """
        import os
        from pathlib import Path
        forked = Path("/proc/self/environ").read_text()
        raise ValueError(f"{os.environ.get('EPOCHAL_SECRET_KAFKA')}; {'of-' in forked}")
    """
    builder = SubprocessBuilder()
    builder.open()
    try:
        for project, seen in (("pricing", "of-pricing"), ("default", "of-default"), ("stock", "None")):
            with pytest.raises(ArtifactError, match=f"{seen}; False"):
                builder.describe(project, write(tmp_path, code), {})
    finally:
        builder.close()


@pytest.mark.parametrize("error", [StoreUnavailable, StoreRefuses])
def test_store_that_a_builder_cannot_reach_is_no_error_of_the_pipeline(error: type[EpochalError]) -> None:
    """The operation waits for the store, or ends with its refusal."""

    class Answering(AskingBuilder):
        def exchange(self, project: str, request: BuildRequest, meanwhile: Meanwhile) -> bytes:
            return BuildAnswer(error=BuildError(slug=error.slug, message="away")).model_dump_json().encode()

    with pytest.raises(error, match="away"):
        Answering().describe("default", Path("flights.py"), {})
