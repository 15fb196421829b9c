"""Artifacts: the submitted code of a pipeline, a Python file or a zip archive, and its parameters.

The main module is the file, or ``pipeline.py`` at the top of the archive. It defines ``build(parameters) -> Pipeline``,
whose parameter is a pydantic model, or an object ``pipeline``. If both exist, ``build`` is used. Without both, a class
with ``@program`` is an application whose entries are served. Other modules of an archive are imported relatively:
``from .lookups import airlines``.

The code is loaded as a package whose name is derived from the sha256 of the artifact, so that versions are separate. It
is pickled by value (:meth:`Artifact.ship`), so that executors need no copy of the files. Loading *runs* the author's
code: do it only in a process that is allowed to run it.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import inspect
import shutil
import sys
import tempfile
import traceback
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel, ValidationError

from epochal.contracts.configuration import Parameters
from epochal.declarations.names import ARTIFACT_PACKAGE, closest, listed
from epochal.errors import ArtifactError, EpochalError, ParameterError
from epochal.pipeline.graph import Graph
from epochal.pipeline.pipeline import Pipeline, served
from epochal.pipeline.unpacking import unpack
from epochal.programs.translation import programs_in

ENTRY = "pipeline.py"


@dataclass(frozen=True)
class Artifact:
    """Loaded code. ``sha256``: the hash of the artifact, which identifies the code version."""

    path: Path
    sha256: str
    module: ModuleType
    folder: Path
    """The location of the code. Traceback frames below it are the author's."""
    parameters: type[BaseModel] | None
    """The model of the parameters; ``None`` if the pipeline takes none."""

    @property
    def package(self) -> str:
        return self.module.__name__.partition(".")[0]

    def pipeline(self, parameters: Parameters | None = None) -> Pipeline:
        """Build the pipeline. Raises ``ParameterError``, ``PipelineError``, ``ArtifactError``."""
        parsed = parse_parameters(self.parameters, parameters or {})
        build = getattr(self.module, "build", None)
        if build is None and not hasattr(self.module, "pipeline"):
            with _author_code(self.folder, self.path.name, self.package):
                return served(programs_in(self.module)[0])
        if build is None:
            return self._checked(self.module.pipeline, "`pipeline`")
        with _author_code(self.folder, self.path.name, self.package):
            result = build() if parsed is None else build(parsed)
        return self._checked(result, "the result of build()")

    def graph(self, parameters: Parameters | None = None) -> Graph:
        """The graph of the pipeline. Raises the errors of :meth:`pipeline`."""
        return self.pipeline(parameters).graph()

    def ship(self) -> None:
        """Make Spark send this code to executors. Imports pyspark."""
        from pyspark import cloudpickle

        cloudpickle.register_pickle_by_value(sys.modules[self.package])  # type: ignore[no-untyped-call]

    def _checked(self, pipeline: object, what: str) -> Pipeline:
        if not isinstance(pipeline, Pipeline):
            raise ArtifactError(f"{self.path.name}: {what} is {type(pipeline).__name__}, not an epochal.Pipeline.")
        return pipeline


def load_graph(path: Path | str, parameters: Parameters | None = None) -> Graph:
    """Load an artifact, ship its code and return its graph. Raises the errors of :func:`load` and ``graph()``."""
    artifact = load(path)
    artifact.ship()
    return artifact.graph(parameters)


@dataclass(frozen=True)
class Code:
    """A loaded module and its location. ``sha256``: the hash of the file."""

    path: Path
    sha256: str
    module: ModuleType
    folder: Path


def load(path: Path | str) -> Artifact:
    """Load an artifact. Raises ``ArtifactError`` with file, line and the author's exception."""
    code = load_code(path)
    parameters = _find_entry_point(code.module, code.path.name)
    return Artifact(code.path, code.sha256, code.module, code.folder, parameters)


def load_code(path: Path | str) -> Code:
    """Load a file or an archive without a check of its contents. Raises the errors of :func:`load`."""
    path = Path(path)
    try:
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        raise ArtifactError(f"{path} does not exist. Use the path of a .py file or a .zip archive.") from None
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror or error}.") from error
    if path.suffix == ".py":
        folder, entry, search = path.resolve().parent, path.resolve(), None
    elif path.suffix == ".zip":
        folder = _unpacked(path)
        entry, search = _entry_of(folder, path.name), folder
    else:
        raise ArtifactError(f"{path.name} is neither a .py file nor a .zip archive.")
    module = _load_module(f"{ARTIFACT_PACKAGE}{sha256[:16]}", entry, search, path.name)
    return Code(path, sha256, module, entry if search is None else folder)


def _find_entry_point(module: ModuleType, name: str) -> type[BaseModel] | None:
    build = getattr(module, "build", None)
    if build is None and not hasattr(module, "pipeline"):
        programs = programs_in(module)
        if len(programs) == 1:
            return None
        if programs:
            raise ArtifactError(
                f"{name} has {len(programs)} programs, {listed(each.__name__ for each in programs)}, and no pipeline. "
                "Add `def build() -> Pipeline:` that defines how they are called."
            )
        raise ArtifactError(
            f"{name} defines no pipeline. Add `pipeline = Pipeline(..)`, "
            "or `def build(parameters: Parameters) -> Pipeline:`; or a class with @program, whose entries are served."
        )
    if build is not None and not callable(build):
        raise ArtifactError(f"{name}: `build` is {type(build).__name__}, not a function.")
    try:
        return None if build is None else parameters_model(build)
    except ArtifactError as error:
        raise ArtifactError(f"{name}: {error.message}") from error


def _load_module(package: str, entry: Path, search: Path | None, name: str) -> ModuleType:
    """Run the main module as ``{package}.pipeline``. ``search``: the directory of its relative imports."""
    _forget(package)
    parent = ModuleType(package)
    parent.__path__ = [] if search is None else [str(search)]
    sys.modules[package] = parent
    spec = importlib.util.spec_from_file_location(f"{package}.pipeline", entry)
    if spec is None or spec.loader is None:
        raise ArtifactError(f"{name} cannot be loaded as Python code.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        with _author_code(entry if search is None else search, name, package):
            spec.loader.exec_module(module)
    except BaseException:
        _forget(package)
        raise
    return module


def _forget(package: str) -> None:
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        del sys.modules[name]


def _unpacked(archive: Path) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="epochal-artifact-")).resolve()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    unpack(archive, folder)
    return folder


def _entry_of(folder: Path, name: str) -> Path:
    if (folder / ENTRY).is_file():
        return folder / ENTRY
    deeper = sorted(path.relative_to(folder) for path in folder.rglob(ENTRY))
    hint = f" It has {deeper[0]}: archive the contents of {deeper[0].parent}/, not the folder." if deeper else ""
    raise ArtifactError(f"{name} has no {ENTRY} at its top.{hint}")


@contextmanager
def _author_code(folder: Path, name: str, package: str) -> Iterator[None]:
    """Runs the author's code: translates its exceptions to ``ArtifactError`` with the line in the author's code."""
    try:
        yield
    except SyntaxError as error:
        file = Path(error.filename).name if error.filename else name
        raise ArtifactError(f"{file}, line {error.lineno}: {error.msg}: {(error.text or '').strip()}") from error
    except EpochalError as error:
        where = _last_line(error, folder)
        raise type(error)(f"{error.message} ({where})" if where else error.message) from error
    except Exception as error:
        what = f"{_last_line(error, folder) or name}: {type(error).__name__}: {error}".rstrip(": ")
        raise ArtifactError(what + _hint(error, package, folder)) from error
    except SystemExit as error:
        where = _last_line(error, folder) or name
        raise ArtifactError(f"{where}: the code exits the process. Remove the call.") from error


def _last_line(error: BaseException, folder: Path) -> str:
    """The innermost frame in the author's code: ``pipeline.py, line 7, in build``."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path == folder or folder in path.parents:
            shown = path.name if path == folder else str(path.relative_to(folder))
            return f"{shown}, line {frame.lineno}" + ("" if frame.name == "<module>" else f", in {frame.name}")
    return ""


def _hint(error: Exception, package: str, folder: Path) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    if frames and "/pyspark/" in frames[-1].filename and isinstance(error, (AssertionError, RuntimeError)):
        return (
            " pyspark.sql.functions requires a running Spark session, but a pipeline is built without one. Use "
            "`from epochal import functions as F`, which has the same functions."
        )
    if isinstance(error, ModuleNotFoundError) and error.name:
        missing = error.name.removeprefix(f"{package}.")
        if (folder / f"{missing}.py").is_file() or (folder / missing).is_dir():
            return f". The archive contains it: import it relatively, `from .{missing} import ..`"
        if missing != error.name:
            return f". Relative imports require a .zip archive: submit {missing}.py and the pipeline in one archive."
    return ""


def parameters_model(build: Callable[..., Any]) -> type[BaseModel] | None:
    """The model of the parameter of ``build``; ``None`` without a parameter. Raises ``ArtifactError`` with the fix."""
    declared = list(inspect.signature(build).parameters.values())
    if not declared:
        return None
    fix = "Write `def build(parameters: Parameters) -> Pipeline:`, with a pydantic model `class Parameters(BaseModel)`."
    if len(declared) > 1:
        raise ArtifactError(f"build() takes {len(declared)} arguments; it can take at most one, its parameters. {fix}")
    try:
        annotation = typing.get_type_hints(build).get(declared[0].name)
    except (NameError, TypeError) as error:
        raise ArtifactError(f"The annotations of build() cannot be evaluated: {error}. {fix}") from error
    if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        raise ArtifactError(f"build() does not declare the type of its parameters. {fix}")
    return annotation


def parse_parameters(model: type[BaseModel] | None, values: Mapping[str, Any]) -> BaseModel | None:
    """Validate ``values`` by the model. Raises ``ParameterError`` that names all invalid fields, without values."""
    if model is None:
        if values:
            raise ParameterError(f"The pipeline takes no parameters, but got {listed(map(repr, values))}. Remove them.")
        return None
    names = _names(model)
    wrong = [
        f"{name}: unknown parameter.{closest(name, names) or f' Parameters: {listed(names)}.'}"
        for name in values
        if name not in names and model.model_config.get("extra") != "allow"
    ]
    parsed: BaseModel | None = None
    try:
        parsed = model.model_validate(dict(values))
    except ValidationError as error:
        wrong += [
            f"{'.'.join(map(str, problem['loc'])) or 'parameters'}: {_sentence(problem['msg'])}"
            for problem in error.errors(include_url=False, include_input=False)
            if problem["type"] != "extra_forbidden"
        ]
    if wrong:
        raise ParameterError("Invalid parameters. " + " ".join(wrong))
    return parsed


def _names(model: type[BaseModel]) -> list[str]:
    return [name for field, info in model.model_fields.items() for name in {field, info.alias or field}]


def _sentence(message: str) -> str:
    text = message.removeprefix("Value error, ")
    return text if text.endswith(".") else f"{text}."
