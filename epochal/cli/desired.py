"""Desired applications: the files that describe them, and the steps that lead to them."""

from __future__ import annotations

import re
import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, Field, ValidationError, model_validator

from epochal.client import Application
from epochal.contracts.configuration import Parameters
from epochal.declarations.names import alternatives
from epochal.errors import ArtifactError, InvalidInput, OptionError
from epochal.wire.bodies import Body, Name, Sha256
from epochal.wire.configuration import ApplicationConfiguration
from epochal.wire.projects import ProjectName

STANDARD_INPUT = "-"


Verb = Literal["create", "upgrade", "rescale", "start", "stop"]


NUMBERS = "configuration.parallelisms."
"""Begin of the paths of the numbers of subtasks of single operators."""

RUNS = ("starting", "running")


class DesiredApplication(Body):
    """Complete description of an application. Omitted fields have their defaults."""

    name: Name
    project: ProjectName | None = Field(
        None, description="Project of the application.  [default: the project of the command]"
    )
    code: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="Path of the code (a Python file or a zip), relative to the folder of this file."
    )
    artifact: Sha256 | None = Field(None, description="SHA-256 of registered code, instead of `code`.")
    parameters: Parameters = Field(default_factory=dict)
    configuration: ApplicationConfiguration = Field(
        default_factory=ApplicationConfiguration,
        description="Configuration as in docs/operations/running.md. If omitted, `max_parallelism` stays unchanged; "
        "with "
        "autoscaling, so does `parallelism`.",
    )
    state: Literal["running", "stopped"] = Field("running", description="Desired state of the application.")

    @model_validator(mode="after")
    def _some_code(self) -> DesiredApplication:
        if (self.code is None) == (self.artifact is None):
            raise ValueError("give one of code (a path) and artifact (a SHA-256)")
        return self


@dataclass(frozen=True)
class Desired:
    """One document. ``place`` is its name in messages; paths of code are relative to ``folder``."""

    place: str
    folder: Path
    application: DesiredApplication

    @property
    def code(self) -> Path | None:
        return None if self.application.code is None else self.folder / self.application.code

    def sha256(self) -> str:
        """SHA-256 of the code. Raises ``ArtifactError`` if it cannot be read."""
        if self.application.artifact is not None:
            return self.application.artifact
        assert self.code is not None
        try:
            return sha256(self.code.read_bytes()).hexdigest()
        except OSError as error:
            raise ArtifactError(f"{self.place}: code: {self.code} cannot be read: {error.strerror}.") from error


class Change(BaseModel):
    """A changed value of an application, by its path, such as ``configuration.parallelism``."""

    path: str
    before: Any
    after: Any


@dataclass(frozen=True)
class Steps:
    """Verbs to apply in order. ``changes``: effect of ``upgrade`` or ``rescale``; ``configuration``: the complete new
    one."""

    verbs: tuple[Verb, ...]
    changes: tuple[Change, ...]
    configuration: ApplicationConfiguration


def read_desired(files: Sequence[str]) -> list[Desired]:
    """Read all documents of all files; ``-`` is standard input. Raises ``InvalidInput`` with all errors."""
    found: list[Desired] = []
    wrong: list[str] = []
    for file in files:
        documents = list(_documents(file))
        if not documents:
            raise InvalidInput(f"{_title(file)} contains no document. Each document describes one application.")
        folder = Path() if file == STANDARD_INPUT else Path(file).parent
        for number, document in enumerate(documents, start=1):
            place = _title(file) if len(documents) == 1 else f"{_title(file)}, document {number}"
            try:
                found.append(Desired(place, folder, _application(document)))
            except ValidationError as error:
                wrong += [f"{place}: {fault}" for fault in _faults(error)]
    wrong += _named_twice(found)
    if wrong:
        raise InvalidInput(" ".join(wrong))
    return found


def schema() -> dict[str, Any]:
    """JSON Schema of a document, for editors and validation."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **DesiredApplication.model_json_schema()}


def steps(now: Application | None, desired: DesiredApplication, artifact: str) -> Steps:
    """Steps from the current to the desired application. ``now``: ``None`` if it does not exist; ``artifact``: SHA-256
    of the desired code.

    Raises ``OptionError`` if this version cannot read the current configuration.
    """
    if now is None:
        return Steps(("create", "start") if desired.state == "running" else ("create",), (), desired.configuration)
    configured = _configured(now)
    configuration = _with_what_stays(desired.configuration, configured)
    before = {"code": now.artifact, "parameters": now.parameters, "configuration": configured.model_dump(mode="json")}
    after = {
        "code": artifact,
        "parameters": desired.parameters,
        "configuration": configuration.model_dump(mode="json"),
    }
    changes = tuple(_changes(before, after))
    verbs: list[Verb] = []
    if desired.state == "stopped" and now.state in (*RUNS, "stopping"):
        verbs.append("stop")
    if changes:
        verbs.append("rescale" if all(is_number(each.path) for each in changes) else "upgrade")
    if desired.state == "running" and now.state not in RUNS and (changes or not _has_ended(now)):
        verbs.append("start")
    return Steps(tuple(verbs), changes, configuration)


def is_number(path: str) -> bool:
    """True for the path of a number of subtasks, which a rescaling changes."""
    return path == "configuration.parallelism" or path.startswith(NUMBERS)


def _application(document: Any) -> DesiredApplication:
    return DesiredApplication.model_validate(document)


def _title(file: str) -> str:
    return "standard input" if file == STANDARD_INPUT else file


def _documents(file: str) -> Iterator[Any]:
    try:
        text = sys.stdin.read() if file == STANDARD_INPUT else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{_title(file)} is not UTF-8: {error.reason} at byte {error.start}.") from None
    try:
        for document in yaml.load_all(text, _Loader):
            if document is not None:
                yield document
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = "" if mark is None else f", line {mark.line + 1}"
        raise InvalidInput(f"{_title(file)}{where}: {error.problem or 'not YAML'}.") from None
    except yaml.YAMLError as error:
        raise InvalidInput(f"{_title(file)} is not YAML: {error}.") from None


def _named_twice(found: Sequence[Desired]) -> Iterator[str]:
    places: dict[str, str] = {}
    for desired in found:
        name = desired.application.name
        if name in places:
            yield f"{desired.place}: name: {name!r} is also described in {places[name]}."
        places.setdefault(name, desired.place)


def _faults(error: ValidationError) -> Iterator[str]:
    for fault in error.errors():
        path = ".".join(str(part) for part in fault["loc"]) or "the document"
        if fault["type"] == "extra_forbidden":
            yield f"{path}: unknown field.{alternatives(str(fault['loc'][-1]), _fields(fault['loc'][:-1]))}"
        elif fault["type"] in ("model_type", "model_attributes_type"):
            yield f"{path}: must be a mapping, not {type(fault['input']).__name__}."
        else:
            yield f"{path}: {fault['msg'].removeprefix('Value error, ')}."


def _fields(path: Sequence[str | int]) -> list[str]:
    """Field names at a path of the document."""
    model: type[BaseModel] = DesiredApplication
    for part in path:
        annotation = model.model_fields[str(part)].annotation
        kinds = (annotation, *getattr(annotation, "__args__", ()))
        model = next(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
    return list(model.model_fields)


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML with the scalar types of JSON: ``no``, ``2026-01-01``, ``010`` and ``1:30`` are text.

    Duplicate keys are refused.
    """

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - as in its base

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for index, key in enumerate(keys):
            if key in keys[:index]:
                mark = node.value[index][0].start_mark
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key!r}", mark)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


_PLAIN_WORDS: Mapping[str, tuple[str, str]] = {
    "null": (r"~|null|", "~n"),
    "bool": (r"true|false", "tf"),
    "int": (r"-?(0|[1-9][0-9]*)", "-0123456789"),
    "float": (r"-?(0|[1-9][0-9]*)(\.[0-9]+([eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)", "-0123456789"),
}


for _tag, (_pattern, _begins) in _PLAIN_WORDS.items():
    _first = [*_begins, ""] if _tag == "null" else [*_begins]
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), _first)


def _configured(now: Application) -> ApplicationConfiguration:
    try:
        return ApplicationConfiguration.model_validate(now.configuration)
    except ValidationError as error:
        setting = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise OptionError(
            f"Application {now.name!r} has a setting that this version of epochal does not support ({setting}). "
            f"Use the "
            "version of the control plane."
        ) from None


def _with_what_stays(desired: ApplicationConfiguration, now: ApplicationConfiguration) -> ApplicationConfiguration:
    """Desired configuration with the current number of key groups unless given, since no upgrade changes it, and with
    autoscaling the current numbers of subtasks that it changes. Raises ``OptionError``."""
    kept: dict[str, Any] = {}
    if "max_parallelism" not in desired.model_fields_set:
        kept["max_parallelism"] = now.max_parallelism
    if desired.autoscaling is not None:
        kept["parallelism"] = min(max(now.parallelism, desired.autoscaling.least), desired.autoscaling.greatest)
        if desired.autoscaling.per_operator:
            kept["parallelisms"] = now.parallelisms
    try:
        return ApplicationConfiguration.model_validate({**desired.model_dump(), **kept})
    except ValidationError as error:
        raise OptionError(f"configuration: {error.errors()[0]['msg'].removeprefix('Value error, ')}.") from None


def _has_ended(now: Application) -> bool:
    """Check whether the application is drained: all sources have ended, and it cannot be started again."""
    return now.state == "stopped" and now.head is not None and now.head.drained


def _changes(before: Mapping[str, Any], after: Mapping[str, Any], above: str = "") -> Iterator[Change]:
    for name in [*before, *(name for name in after if name not in before)]:
        old, new = before.get(name), after.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _changes(old, new, f"{above}{name}.")
        elif old != new or (name in before) != (name in after):
            yield Change(path=f"{above}{name}", before=old, after=new)
