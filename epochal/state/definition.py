"""What the author of a state table wrote: its aggregates, keys and inputs, as the manifest keeps them.

Texts are the author's own. Nothing is canonical here: the version that compares two definitions brings both into the
same form (:mod:`epochal.state.meaning`), so that an upgrade of a SQL parser or of Spark changes no verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, SerializerFunctionWrapHandler, model_serializer


class _Stored(BaseModel):
    """Fields that have their defaults are left out of the JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_serializer(mode="wrap")
    def _without_defaults(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = serialize(self)
        declared = type(self).model_fields
        return {
            name: value
            for name, value in fields.items()
            if name == "step" or declared[name].is_required() or getattr(self, name) != declared[name].default
        }


class Code(_Stored):
    """A function or class of the author. ``sha256``: of its syntax tree without docstrings and positions, shortened;
    ``None`` where its source cannot be read. Globals, helpers and libraries that it uses are not covered."""

    module: str
    name: str
    sha256: str | None = None

    @property
    def identity(self) -> str:
        return f"{self.module}.{self.name}"


class Value(_Stored):
    """A literal among the arguments of a call."""

    value: Any = None


class Call(_Stored):
    """A recorded call of one of Spark's functions, or of a method of the column ``on``."""

    call: str
    on: Written | None = None
    arguments: tuple[Argument, ...] = ()
    named: dict[str, Argument] = {}


class Group(_Stored):
    """A list or tuple among the arguments of a call."""

    group: tuple[Argument, ...]


Written = str | Call
"""A column as its author wrote it: SQL text, or recorded calls of functions."""
Argument = str | Call | Value | Group | Code


class Leaf(_Stored):
    """Where rows come from: a source, a static table, the head of a loop, an operator or a side of one.

    ``columns``: name -> Spark type; those that nothing above reads may be left out.
    """

    step: Literal["leaf"] = "leaf"
    kind: Literal["source", "table", "loop", "operator", "side"]
    name: str
    columns: dict[str, str]


class Select(_Stored):
    """Columns in their order, as pairs of name and text; the pair of an asterisk alone stands for all of ``of``."""

    step: Literal["select"] = "select"
    of: Relation
    columns: tuple[tuple[str, Written], ...]
    multiplies: bool = False
    """Whether a column gives several rows for one."""


class With(_Stored):
    """Columns that are added or replaced, each computed from the columns of ``of``."""

    step: Literal["with"] = "with"
    of: Relation
    columns: dict[str, Written]
    multiplies: bool = False


class Where(_Stored):
    step: Literal["where"] = "where"
    of: Relation
    condition: Written


class Drop(_Stored):
    step: Literal["drop"] = "drop"
    of: Relation
    columns: tuple[str, ...]


class Union(_Stored):
    step: Literal["union"] = "union"
    of: tuple[Relation, ...]


class TableJoin(_Stored):
    """A join with a static table."""

    step: Literal["join"] = "join"
    of: Relation
    table: Relation
    on: tuple[str, ...]
    how: str


class Timed(_Stored):
    """Rows from a declaration of event time on: those without a possible one are left out."""

    step: Literal["timed"] = "timed"
    of: Relation
    column: str


class Kept(_Stored):
    """The rows that the engine keeps from an operator or a declaration: ``late``, ``rejected``."""

    step: Literal["kept"] = "kept"
    of: Relation
    side: str
    owner: str


class Opaque(_Stored):
    """Rows that code computes: every column may depend on every column of the inputs."""

    step: Literal["opaque"] = "opaque"
    of: tuple[Relation, ...]
    label: str
    columns: tuple[str, ...]
    code: Code | None = None


class Stateless(_Stored):
    """The output of an operator without a state table, whose definition stands here because no table has it."""

    step: Literal["stateless"] = "stateless"
    name: str
    columns: tuple[str, ...]
    definition: OperatorDefinition


Relation = Annotated[
    Leaf | Select | With | Where | Drop | Union | TableJoin | Timed | Kept | Opaque | Stateless, Discriminator("step")
]


class InputDefinition(_Stored):
    """One input of an operator. ``reads``: the columns that its state is made of, beside ``keys``, the event ``time``
    and what its aggregates say themselves; ``None``: all. ``kept``: whether state is made of its rows at all."""

    rows: Relation
    keys: tuple[str, ...] = ()
    time: str | None = None
    reads: tuple[str, ...] | None = None
    kept: bool = True


class Passed(_Stored):
    """An output column that is a column of an input."""

    input: int
    column: str


class OperatorDefinition(_Stored):
    """``output``: how output columns are computed over input 0, or from which input they are passed on; what is left
    out is known by the operator's name alone. ``code``: the author's classes and functions that it calls."""

    inputs: tuple[InputDefinition, ...]
    output: dict[str, Written | Passed] = {}
    code: tuple[Code, ...] = ()


class ColumnDefinition(_Stored):
    """One value column of an aggregate: how two partial values merge, and what Spark aggregates over a slice.

    ``column``: the author's column that the value is kept for, where its name differs: ``r`` of ``r_1``.
    """

    merge: str
    aggregate: Written
    column: str | None = None


class Definition(_Stored):
    """Of one state table. ``columns``: by value column. ``operator``: on the first table of each operator alone."""

    columns: dict[str, ColumnDefinition] = {}
    operator: OperatorDefinition | None = None


for _model in (Call, Group, Select, With, Where, Drop, Union, TableJoin, Timed, Kept, Opaque, Stateless):
    _model.model_rebuild()


def changed_code(before: Definition, after: Definition) -> Iterator[str]:
    """Classes and functions of the author that have the same name and another syntax tree."""
    was = {code.identity: code for code in _codes(before)}
    for code in {code.identity: code for code in _codes(after)}.values():
        known = was.get(code.identity)
        if known is not None and None not in (known.sha256, code.sha256) and known.sha256 != code.sha256:
            yield code.identity


def _codes(value: Any) -> Iterator[Code]:
    """All code of the author within a definition."""
    if isinstance(value, Code):
        yield value
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _codes(getattr(value, name))
    elif isinstance(value, (tuple, Mapping)):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _codes(each)
