"""Definition of a state table by its author: aggregates, keys and inputs, as the manifest stores them.

Texts are the author's own and not in canonical form. The version that compares two definitions converts both to the
same form (:mod:`epochal.state.meaning`), so that an upgrade of a SQL parser or of Spark changes no verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, SerializerFunctionWrapHandler, model_serializer


class _Stored(BaseModel):
    """A model whose JSON omits fields with default values."""

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
    """A function or class of the author. ``sha256``: truncated hash of its syntax tree without docstrings and
    positions; ``None`` if its source cannot be read. The hash does not cover the globals, helpers and libraries that
    the code uses."""

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
    """Origin of rows: a source, a static table, the head of a loop, an operator or a side output of one.

    ``columns``: name -> Spark type; may omit columns that no downstream step reads.
    """

    step: Literal["leaf"] = "leaf"
    kind: Literal["source", "table", "loop", "operator", "side"]
    name: str
    columns: dict[str, str]


class Select(_Stored):
    """Columns in order, as pairs of name and text; the name ``*`` stands for all columns of ``of``."""

    step: Literal["select"] = "select"
    of: Relation
    columns: tuple[tuple[str, Written], ...]
    multiplies: bool = False
    """True if a column yields several rows per row."""


class With(_Stored):
    """Added or replaced columns, each computed from the columns of ``of``."""

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
    """Rows after a declaration of event time: rows without a valid event time are excluded."""

    step: Literal["timed"] = "timed"
    of: Relation
    column: str


class Kept(_Stored):
    """Side output of rows that the engine diverts from an operator or a declaration: ``late``, ``rejected``."""

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
    """Output of an operator without a state table; contains the operator's definition, which no table stores."""

    step: Literal["stateless"] = "stateless"
    name: str
    columns: tuple[str, ...]
    definition: OperatorDefinition


Relation = Annotated[
    Leaf | Select | With | Where | Drop | Union | TableJoin | Timed | Kept | Opaque | Stateless, Discriminator("step")
]


class InputDefinition(_Stored):
    """One input of an operator. ``reads``: the columns that its state depends on, in addition to ``keys``, the event
    ``time`` and the columns of its aggregates; ``None``: all columns. ``kept``: true if state depends on its rows."""

    rows: Relation
    keys: tuple[str, ...] = ()
    time: str | None = None
    reads: tuple[str, ...] | None = None
    kept: bool = True


class Passed(_Stored):
    """An output column that passes a column of an input through."""

    input: int
    column: str


class OperatorDefinition(_Stored):
    """Definition of one operator. ``output``: the expression of each output column over input 0, or the input that
    passes it through; other output columns are identified by the operator's name alone. ``code``: the author's classes
    and functions that the operator calls."""

    inputs: tuple[InputDefinition, ...]
    output: dict[str, Written | Passed] = {}
    code: tuple[Code, ...] = ()


class ColumnDefinition(_Stored):
    """One value column of an aggregate: the merge of two partial values, and Spark's aggregate over a slice.

    ``column``: the author's column that the value belongs to, if its name differs: ``r`` for ``r_1``.
    """

    merge: str
    aggregate: Written
    column: str | None = None


class Definition(_Stored):
    """Definition of one state table. ``columns``: by value column. ``operator``: only on an operator's first table."""

    columns: dict[str, ColumnDefinition] = {}
    operator: OperatorDefinition | None = None


for _model in (Call, Group, Select, With, Where, Drop, Union, TableJoin, Timed, Kept, Opaque, Stateless):
    _model.model_rebuild()


def changed_code(before: Definition, after: Definition) -> Iterator[str]:
    """Names of the author's classes and functions whose syntax tree has changed."""
    was = {code.identity: code for code in _codes(before)}
    for code in {code.identity: code for code in _codes(after)}.values():
        known = was.get(code.identity)
        if known is not None and None not in (known.sha256, code.sha256) and known.sha256 != code.sha256:
            yield code.identity


def _codes(value: Any) -> Iterator[Code]:
    """All of the author's code within a definition."""
    if isinstance(value, Code):
        yield value
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _codes(getattr(value, name))
    elif isinstance(value, (tuple, Mapping)):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _codes(each)
