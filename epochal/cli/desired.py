"""Files that say what applications are to be: read, checked as a whole, refused with the path to the field."""

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

from epochal.contracts.configuration import Parameters
from epochal.declarations.names import alternatives
from epochal.errors import ArtifactError, InvalidInput
from epochal.wire.bodies import Body, Name, Sha256
from epochal.wire.configuration import ApplicationConfiguration
from epochal.wire.projects import ProjectName

STANDARD_INPUT = "-"


class DesiredApplication(Body):
    """What an application is to be. It is the whole of it: what is left out is as its default says."""

    name: Name
    project: ProjectName | None = Field(None, description="Where it belongs; without: as the command says.")
    code: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="Path of the code, a Python file or a zip, from the folder of this file."
    )
    artifact: Sha256 | None = Field(None, description="Instead of `code`: the SHA-256 of code that is registered.")
    parameters: Parameters = Field(default_factory=dict)
    configuration: ApplicationConfiguration = Field(
        default_factory=ApplicationConfiguration,
        description="As in docs/operations.md. `max_parallelism`, and where it scales by itself `parallelism`, stay as "
        "they are unless they are said.",
    )
    state: Literal["running", "stopped"] = Field("running", description="Whether it is to run.")

    @model_validator(mode="after")
    def _some_code(self) -> DesiredApplication:
        if (self.code is None) == (self.artifact is None):
            raise ValueError("give one of code (a path) and artifact (a SHA-256)")
        return self


@dataclass(frozen=True)
class Desired:
    """One document. ``place`` names it in messages; ``folder``: what the path of its code starts from."""

    place: str
    folder: Path
    application: DesiredApplication

    @property
    def code(self) -> Path | None:
        return None if self.application.code is None else self.folder / self.application.code

    def sha256(self) -> str:
        """Of the code. Raises ``ArtifactError`` when it cannot be read."""
        if self.application.artifact is not None:
            return self.application.artifact
        assert self.code is not None
        try:
            return sha256(self.code.read_bytes()).hexdigest()
        except OSError as error:
            raise ArtifactError(f"{self.place}: code: {self.code} cannot be read: {error.strerror}.") from error


def read_desired(files: Sequence[str]) -> list[Desired]:
    """All documents of all files, ``-`` being standard input. Raises ``InvalidInput`` with all that is wrong."""
    found: list[Desired] = []
    wrong: list[str] = []
    for file in files:
        documents = list(_documents(file))
        if not documents:
            raise InvalidInput(f"{_title(file)} holds no document; each describes one application.")
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
    """JSON Schema of a document, for editors and for checks before a merge."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **DesiredApplication.model_json_schema()}


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
            yield f"{desired.place}: name: {name!r} is described in {places[name]}, too."
        places.setdefault(name, desired.place)


def _faults(error: ValidationError) -> Iterator[str]:
    for fault in error.errors():
        path = ".".join(str(part) for part in fault["loc"]) or "the document"
        if fault["type"] == "extra_forbidden":
            yield f"{path}: there is no such field.{alternatives(str(fault['loc'][-1]), _fields(fault['loc'][:-1]))}"
        elif fault["type"] in ("model_type", "model_attributes_type"):
            yield f"{path}: give fields with their values, not {type(fault['input']).__name__}."
        else:
            yield f"{path}: {fault['msg'].removeprefix('Value error, ')}."


def _fields(path: Sequence[str | int]) -> list[str]:
    """The fields that there are at a path of the document."""
    model: type[BaseModel] = DesiredApplication
    for part in path:
        annotation = model.model_fields[str(part)].annotation
        kinds = (annotation, *getattr(annotation, "__args__", ()))
        model = next(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
    return list(model.model_fields)


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML whose plain words are those of JSON: ``no`` and ``2026-01-01`` are text, and so are ``010`` and ``1:30``.

    A key that is there twice is refused.
    """

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - as in its base

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for index, key in enumerate(keys):
            if key in keys[:index]:
                mark = node.value[index][0].start_mark
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is there twice", mark)
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
