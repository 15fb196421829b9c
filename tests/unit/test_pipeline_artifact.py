"""Artifacts: files and archives, parameters, and errors in the author's own lines."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from textwrap import dedent

import pytest

from epochal.errors import ArtifactError, OptionError, ParameterError, PipelineError
from epochal.pipeline.artifact import load, load_graph
from epochal.pipeline.entry_verbs import entries_of
from examples.sdg import logistic_regression

GOOD = """
from pydantic import BaseModel, Field
from epochal import Pipeline
from epochal.connectors import console, generator

class Parameters(BaseModel):
    rows: int = Field(ge=1)
    label: str = "x"

def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("made")
    pipeline.read("rows", generator.source({"a": "id"}, bound=parameters.rows)).write("out", console.sink())
    return pipeline
"""


def file(folder: Path, code: str, name: str = "made.py") -> Path:
    path = folder / name
    path.write_text(dedent(code))
    return path


def archive(folder: Path, **members: str) -> Path:
    path = folder / "made.zip"
    with zipfile.ZipFile(path, "w") as opened:
        for name, text in members.items():
            opened.writestr(name.replace("__", "/") + ".py", dedent(text))
    return path


def refusal(path: Path, parameters: dict[str, object] | None = None) -> str:
    with pytest.raises((ArtifactError, ParameterError, PipelineError, OptionError)) as caught:
        load(path).graph(parameters)
    return caught.value.message


def test_a_file_is_loaded_with_its_parameters(tmp_path: Path) -> None:
    path = file(tmp_path, GOOD)
    artifact = load(path)
    graph = artifact.graph({"rows": "7"})
    assert graph.sources[0].description["bound"] == 7
    assert artifact.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_an_archive_imports_its_own_modules(tmp_path: Path) -> None:
    path = archive(tmp_path, pipeline="from .parts.build import build", parts__build=GOOD, parts____init__="")
    assert load(path).graph({"rows": 3}).name == "made"


def test_two_versions_are_loaded_as_separate_modules(tmp_path: Path) -> None:
    one = load(file(tmp_path, GOOD, "one.py"))
    two = load(file(tmp_path, GOOD.replace('"made"', '"other"'), "two.py"))
    assert (one.graph({"rows": 1}).name, two.graph({"rows": 1}).name) == ("made", "other")


def test_functions_are_pickled_by_value(tmp_path: Path) -> None:
    """A process without the artifact can call the unpickled function."""
    import subprocess
    import sys

    from pyspark import cloudpickle

    path = archive(
        tmp_path,
        pipeline=GOOD + "\nfrom .tools import double\ndef quadruple(x):\n    return double(double(x))\n",
        tools="def double(x):\n    return 2 * x\n",
    )
    artifact = load(path)
    artifact.ship()
    pickled = tmp_path / "function"
    pickled.write_bytes(cloudpickle.dumps(artifact.module.quadruple))  # type: ignore[no-untyped-call]
    code = f"import pickle; print(pickle.loads(open({str(pickled)!r}, 'rb').read())(10))"
    answer = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert answer.stdout.strip() == "40"


def test_load_graph_registers_the_module_for_pickling_by_value(tmp_path: Path) -> None:
    from pyspark import cloudpickle

    assert load_graph(file(tmp_path, GOOD), {"rows": 2}).name == "made"
    module = load(tmp_path / "made.py").package
    assert module in cloudpickle.list_registry_pickle_by_value()  # type: ignore[no-untyped-call]


def test_every_invalid_parameter_is_listed_without_its_value(tmp_path: Path) -> None:
    message = refusal(file(tmp_path, GOOD), {"row": "secret", "label": 3})
    assert "row: unknown parameter. Did you mean 'rows'?" in message
    assert "rows: Field required." in message
    assert "label: Input should be a valid string." in message
    assert "secret" not in message


def test_parameters_are_refused_by_a_pipeline_without_parameters(tmp_path: Path) -> None:
    code = GOOD.replace("parameters: Parameters", "").replace("parameters.rows", "3")
    path = file(tmp_path, code)
    assert load(path).graph().name == "made"
    assert "takes no parameters" in refusal(path, {"rows": 3})


WRONG = [
    ("x = (1,\ny = 2\n", ["made.py, line 1", "never closed"]),
    ("import nothing_of_this_name\n", ["made.py, line 1", "ModuleNotFoundError"]),
    ("def f():\n    return 1 / 0\nf()\n", ["made.py, line 2, in f", "ZeroDivisionError: division by zero"]),
    ("x = 3\n", ["defines no pipeline", "def build"]),
    ("pipeline = 3\n", ["`pipeline` is int"]),
    ("def build():\n    return None\n", ["the result of build() is NoneType"]),
    ("def build(parameters):\n    return None\n", ["does not declare the type of its parameters", "BaseModel"]),
    ("def build(a: int, b: int):\n    return None\n", ["takes 2 arguments"]),
    ("build = 3\n", ["not a function"]),
    ("import sys\nsys.exit(3)\n", ["made.py, line 2", "exits the process"]),
    ("from .other import x\n", ["made.py, line 1", "submit other.py and the pipeline in one archive"]),
    (
        "import pyspark.sql.functions as F\nx = F.count('*')\n",
        ["made.py, line 2", "from epochal import functions as F"],
    ),
    (
        "import pyspark.sql.functions as F\nx = F.col('a')\n",
        ["made.py, line 2", "from epochal import functions as F"],
    ),
    ("from epochal import Pipeline\npipeline = Pipeline('Bad Name')\n", ["'Bad Name'", "(made.py, line 2)"]),
]
IN_A_PROCESS = """
import json, sys
from epochal.errors import EpochalError
from epochal.pipeline.artifact import load
messages = []
for path in sys.argv[1:]:
    try:
        load(path).graph()
    except EpochalError as error:
        messages.append(error.message)
print(json.dumps(messages))
"""


def test_errors_name_the_authors_own_line(tmp_path: Path) -> None:
    """In a separate process, because a Spark session of an earlier test would let pyspark create columns."""
    paths = []
    for number, (code, _) in enumerate(WRONG):
        (tmp_path / str(number)).mkdir()
        paths.append(file(tmp_path / str(number), code))
    answer = subprocess.run(
        [sys.executable, "-c", IN_A_PROCESS, *map(str, paths)], capture_output=True, text=True, timeout=60
    )
    assert answer.returncode == 0, answer.stderr
    for (code, parts), message in zip(WRONG, json.loads(answer.stdout), strict=True):
        for part in parts:
            assert part in message, code
        assert "epochal/" not in message, code


def test_other_files_are_refused_as_artifacts(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "missing.py")
    assert "neither a .py file nor a .zip" in refusal(file(tmp_path, "", "made.txt"))
    assert "not a readable zip archive" in refusal(file(tmp_path, "nonsense", "made.zip"))
    assert "archive the contents of inner/" in refusal(archive(tmp_path, inner__pipeline=GOOD))


def test_an_absolute_import_of_a_sibling_is_refused_with_the_relative_one(tmp_path: Path) -> None:
    message = refusal(archive(tmp_path, pipeline="import airline_lists\n", airline_lists=""))
    assert "pipeline.py, line 1" in message
    assert "from .airline_lists import" in message


@pytest.mark.parametrize("name", ["../outside.py", "/outside.py", "a/../../outside.py", "a\\..\\outside.py"])
def test_paths_outside_of_the_archive_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "made.zip"
    with zipfile.ZipFile(path, "w") as opened:
        opened.writestr("pipeline.py", GOOD)
        entry = zipfile.ZipInfo("x")
        entry.filename = name
        opened.writestr(entry, "stolen")
    assert "path outside of the archive" in refusal(path)


def test_a_link_in_an_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "made.zip"
    with zipfile.ZipFile(path, "w") as opened:
        entry = zipfile.ZipInfo("pipeline.py")
        entry.external_attr = 0o120777 << 16
        opened.writestr(entry, "/etc/passwd")
    assert "link" in refusal(path)


def test_an_archive_above_the_unpacked_size_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from epochal.pipeline import unpacking

    monkeypatch.setattr(unpacking, "LARGEST_ARCHIVE", 1000)
    path = archive(tmp_path, pipeline=GOOD, large="#" * 5000)
    assert "unpacks to more than" in refusal(path)


def test_a_file_with_one_program_becomes_an_application_with_its_entries(tmp_path: Path) -> None:
    text = Path(logistic_regression.__file__).read_text()
    graph = load(file(tmp_path, text)).graph()
    assert graph.name == "logistic_regression"
    assert [entry.name for entry in entries_of(graph)] == ["observe", "gradient", "step", "probability"]
    two = text.replace("@program\n", "@program\nclass Other:\n    pass\n\n\n@program\n")
    with pytest.raises(ArtifactError, match="2 programs, Other, LogisticRegression, and no pipeline"):
        load(file(tmp_path, two, "two.py"))
