"""Canonical form of columns: the meaning of an author's text over the columns of the sources.

Two texts with equal meanings compute the same values. The converse does not hold: ``a > b`` and ``b < a`` differ here,
so that the upgrade requires acceptance and never continues silently. Text that cannot be parsed is compared as text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Final, TypeAlias

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from epochal.state.column_methods import BINARY, UNARY
from epochal.state.definition import Argument, Call, Code, Group, Value, Written
from epochal.state.type_names import quoted

_DIALECT: Final = "spark"
_SYNONYMS: Final = {
    "mean": "avg",
    "std": "stddev",
    "every": "bool_and",
    "some": "bool_or",
    "any": "bool_or",
    "countdistinct": "count_distinct",
    "sumdistinct": "sum_distinct",
    "approxcountdistinct": "approx_count_distinct",
}
_BINARY: Final = {**BINARY, "eqNullSafe": "<=>", "like": "LIKE", "rlike": "RLIKE", "ilike": "ILIKE"}
_REVERSED: Final = {f"__r{name[2:]}": sign for name, sign in _BINARY.items() if name.startswith("__")}
_AS_FUNCTIONS: Final = {"startswith": "startswith", "endswith": "endswith", "contains": "contains", "substr": "substr"}
_PLAIN: Final = re.compile(r"\*|[\w.]+|(?:`[^`]*`)(?:\.`[^`]*`)*")
_TYPE_FUNCTIONS: Final = frozenset({"bigint", "smallint", "tinyint", "double", "binary"})


@dataclass(frozen=True, eq=False)
class Meaning:
    """A node of a canonical form. Equality is by ``digest``, so that comparisons of forms with shared parts stay cheap.

    A column of a leaf has the tag ``leaf``, with kind, name, column and type as parts. Rows that code reads have the
    tag ``rows``, with pairs of name and meaning as parts.
    """

    tag: str
    parts: tuple[Meaning | str, ...] = ()
    source: tuple[exp.Expression, Columns] | None = None
    """The origin of the node, for display: a parsed text and the columns that it reads."""

    @cached_property
    def digest(self) -> bytes:
        hashed = hashlib.sha256(self.tag.encode())
        for part in self.parts:
            hashed.update(b"\x00" + part.encode() if isinstance(part, str) else b"\x01" + part.digest)
        return hashed.digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Meaning) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


Columns: TypeAlias = "Mapping[str, Meaning]"
"""The meaning of each column, by lower-case name."""


def in_order(meanings: Iterable[Meaning]) -> tuple[Meaning, ...]:
    return tuple(sorted(meanings, key=lambda meaning: meaning.digest))


def meaning_of(column: Written, columns: Columns) -> Meaning:
    """The meaning of a column computed over ``columns``; its own name is ignored."""
    parsed = _parsed(sql_of(column))
    if parsed is None:
        read = Meaning("rows", tuple(Meaning(name, (meaning,)) for name, meaning in sorted(columns.items())))
        return Meaning("text", (text_of(column), read))
    return _with_source(parsed, columns, frozenset())


def conjuncts(condition: Written, columns: Columns) -> frozenset[Meaning]:
    """The conditions that a filter combines with AND."""
    meaning = meaning_of(condition, columns)
    if meaning.tag == "And":
        return frozenset(part for part in meaning.parts if isinstance(part, Meaning))
    return frozenset({meaning})


def function_of(aggregate: Written) -> str:
    """The outermost function of an aggregate."""
    parsed = _parsed(sql_of(aggregate))
    if parsed is None:
        return text_of(aggregate).partition("(")[0].strip().casefold()
    while isinstance(parsed, (exp.Filter, exp.Paren)):
        parsed = parsed.this
    distinct = " distinct" if isinstance(parsed.this, exp.Distinct) else ""
    return _name(parsed) + distinct


def text_of(column: Written) -> str:
    """The column for display, as SQL where it has a SQL form."""
    return " ".join((sql_of(column) or str(column)).split()).replace(" )", ")")


def sql_of(column: Written) -> str | None:
    """The column as Spark SQL; ``None`` if its arguments include code or a call has no SQL form."""
    if isinstance(column, str):
        return column
    return _method(column) if column.on is not None else _function(column)


def _function(call: Call) -> str | None:
    if call.call == "lit" and len(call.arguments) == 1:
        return _argument(call.arguments[0])
    arguments = [_argument(each) for each in call.arguments]
    arguments += [_argument(each) for each in call.named.values()]
    known = [each for each in arguments if each is not None]
    if len(known) < len(arguments):
        return None
    name = _SYNONYMS.get(call.call.casefold(), call.call)
    if name in ("count_distinct", "sum_distinct"):
        return f"{name.partition('_')[0]}(DISTINCT {', '.join(known)})"
    if name == "when" and len(known) == 2:
        return f"CASE WHEN {known[0]} THEN {known[1]} END"
    return f"{name}({', '.join(known)})"


def _method(call: Call) -> str | None:
    assert call.on is not None  # a method call has a column
    target = _operand(call.on)
    arguments = [_operand_of(each) for each in (*call.arguments, *call.named.values())]
    known = [each for each in arguments if each is not None]
    if target is None or len(known) < len(arguments):
        return None
    match call.call, known:
        case (("alias" | "name"), [*_]):
            return sql_of(call.on)
        case name, [] if name in UNARY:
            return f"({UNARY[name].format(target)})"
        case name, [other] if name in _BINARY:
            return f"({target} {_BINARY[name]} {other})"
        case name, [other] if name in _REVERSED:
            return f"({other} {_REVERSED[name]} {target})"
        case (("cast" | "astype" | "try_cast"), [_]):
            return _cast(target, call.arguments[0], "TRY_CAST" if call.call == "try_cast" else "CAST")
        case "between", [low, high]:
            return f"({target} BETWEEN {low} AND {high})"
        case "isin", [_, *_]:
            return f"({target} IN ({', '.join(_members(call.arguments))}))"
        case (("when" | "otherwise"), _):
            return _case(call)
        case (("getField" | "getItem" | "__getitem__"), [key]):
            field = call.arguments[0]
            if isinstance(field, Value) and isinstance(field.value, str) and call.call == "getField":
                return f"{target}.{quoted(field.value)}"
            return f"{target}[{key}]"
        case name, _ if name in _AS_FUNCTIONS:
            return f"{name}({', '.join([target, *known])})"
        case _:
            return None


def _cast(target: str, type: Argument, function: str) -> str | None:
    return f"{function}({target} AS {type.value})" if isinstance(type, Value) else None


def _case(call: Call) -> str | None:
    """``when(..).when(..).otherwise(..)``."""
    assert call.on is not None  # a method call has a column
    before = sql_of(call.on)
    if before is None or not before.startswith("CASE ") or not before.endswith(" END") or isinstance(call.on, str):
        return None
    arguments = [each for each in map(_argument, call.arguments) if each is not None]
    match call.call, arguments:
        case "when", [condition, value]:
            return f"{before.removesuffix(' END')} WHEN {condition} THEN {value} END"
        case "otherwise", [value]:
            return f"{before.removesuffix(' END')} ELSE {value} END"
        case _:
            return None


def _members(arguments: Sequence[Argument]) -> Iterator[str]:
    for each in arguments:
        if isinstance(each, Group):
            yield from _members(each.group)
        else:
            yield _argument(each) or "?"


def _operand(column: Written) -> str | None:
    text = sql_of(column)
    is_cast = isinstance(column, Call) and column.call in ("cast", "astype", "try_cast")
    if text is None or is_cast or _PLAIN.fullmatch(text):
        return text
    return f"({text}\n)"


def _operand_of(value: Argument) -> str | None:
    return _operand(value) if isinstance(value, (str, Call)) else _argument(value)


def _argument(value: Argument) -> str | None:
    match value:
        case str():
            return f"{value}\n" if "--" in value else value
        case Call():
            return sql_of(value)
        case Value(value=literal):
            return _literal(literal)
        case Group(group=members):
            inner = [_argument(each) for each in members]
            known = [each for each in inner if each is not None]
            return f"array({', '.join(known)})" if len(known) == len(inner) else None
        case Code():
            return None


def _literal(value: Any) -> str | None:
    if value is None or isinstance(value, bool):
        return "NULL" if value is None else str(value).upper()
    if isinstance(value, int):
        return str(value) if value >= 0 else f"({value})"
    if isinstance(value, float):
        return f"CAST('{value!r}' AS DOUBLE)"
    return exp.Literal.string(str(value)).sql(_DIALECT)


@lru_cache(maxsize=4096)
def _parsed(text: str | None) -> exp.Expression | None:
    """The syntax tree of the text without its alias; ``None`` if the text cannot be parsed as one column."""
    if text is None:
        return None
    try:
        parsed = sqlglot.parse_one(text, dialect=_DIALECT)
    except (SqlglotError, RecursionError):
        return None
    if isinstance(parsed, exp.Alias):
        parsed = parsed.this
    if isinstance(parsed, (exp.Query, exp.Command, exp.Aliases)) or parsed.find(exp.Query) is not None:
        return None
    return parsed if isinstance(parsed, exp.Expression) else None


def _with_source(node: exp.Expression, columns: Columns, bound: frozenset[str]) -> Meaning:
    meaning = _canonical(node, columns, bound)
    return meaning if isinstance(node, exp.Column) else replace(meaning, source=(node, columns))


def _canonical(node: exp.Expression, columns: Columns, bound: frozenset[str]) -> Meaning:
    """The canonical form of a syntax tree. ``bound``: parameters of the enclosing lambdas, which are not columns."""
    match node:
        case exp.Paren():
            return _canonical(node.this, columns, bound)
        case exp.Column():
            return _column(node, columns, bound)
        case exp.Identifier():
            return _named(node.name, columns, bound)
        case exp.StddevSamp():
            return _canonical(exp.Stddev(this=node.this), columns, bound)
        case exp.And() | exp.Or():
            return Meaning(type(node).__name__, in_order({*_flat(node, type(node), columns, bound)}))
        case exp.Lambda():
            inner = bound | {each.name.casefold() for each in node.expressions}
            parameters = tuple(each.name.casefold() for each in node.expressions)
            return Meaning("Lambda", (*parameters, _canonical(node.this, columns, inner)))
        case exp.Count() if isinstance(node.this, exp.Expression) and _counts_rows(node.this.unnest()):
            return Meaning("Count", (Meaning("Star"),))
        case exp.Literal():
            return Meaning("Literal", ("text" if node.is_string else "number", node.name))
        case exp.DataType():
            return Meaning("DataType", (node.sql(_DIALECT).casefold(),))
        case exp.Anonymous() if (known := _known_by_another_name(node)) is not None:
            return _canonical(known, columns, bound)
        case _:
            return _of(node, columns, bound)


def _of(node: exp.Expression, columns: Columns, bound: frozenset[str]) -> Meaning:
    parts: list[Meaning | str] = []
    for name in node.arg_types:
        value = node.args.get(name)
        if value is None or value is False or value == [] or (isinstance(node, exp.Anonymous) and name == "this"):
            continue
        parts.append(f"{name}=")
        for each in value if isinstance(value, list) else [value]:
            parts.append(_canonical(each, columns, bound) if isinstance(each, exp.Expression) else str(each))
    return Meaning(_name(node), tuple(parts))


def _counts_rows(argument: exp.Expr) -> bool:
    return isinstance(argument, exp.Star) or argument.is_int


def _known_by_another_name(node: exp.Anonymous) -> exp.Expression | None:
    """The call under the function's usual name, if the parser does not recognize the given name."""
    name, arguments = node.name.casefold(), [each.sql(_DIALECT) for each in node.expressions]
    if name in _TYPE_FUNCTIONS and len(arguments) == 1:
        return _parsed(f"CAST({arguments[0]} AS {name})")
    return _parsed(f"{_SYNONYMS[name]}({', '.join(arguments)})") if name in _SYNONYMS else None


def _name(node: exp.Expression) -> str:
    if not isinstance(node, exp.Anonymous):
        return type(node).__name__
    known = _known_by_another_name(node)
    return node.name.casefold() if known is None else _name(known)


def _flat(
    node: exp.Expression, kind: type[exp.Expression], columns: Columns, bound: frozenset[str]
) -> Iterator[Meaning]:
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, kind):
        yield from _flat(node.args["this"], kind, columns, bound)
        yield from _flat(node.args["expression"], kind, columns, bound)
    else:
        yield _with_source(node, columns, bound)


def _column(node: exp.Column, columns: Columns, bound: frozenset[str]) -> Meaning:
    """Resolve a column reference. ``payload.x`` is a field of a column: pipeline expressions have no table names."""
    if isinstance(node.this, exp.Star):
        first, *rest = [part.name for part in node.parts[:-1]] or ["*"]
        return Meaning("Star", (_named(first, columns, bound), *rest)) if node.parts[:-1] else Meaning("Star")
    first, *fields = [part.name for part in node.parts]
    meaning = _named(first, columns, bound)
    for field in fields:
        meaning = Meaning("Dot", (meaning, field.casefold()))
    return meaning


def _named(name: str, columns: Columns, bound: frozenset[str]) -> Meaning:
    folded = name.casefold()
    if folded in bound:
        return Meaning("parameter", (folded,))
    return columns.get(folded) or Meaning("name", (folded,))


def described(meaning: Meaning | str, most: int = 160) -> str:
    """The meaning for display, truncated to ``most`` characters: ``flights.delay * 100``."""
    text = _described(meaning)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _described(meaning: Meaning | str) -> str:
    if isinstance(meaning, str):
        return meaning
    if meaning.source is not None:
        node, columns = meaning.source
        return " ".join(node.transform(_shown_over, columns).sql(_DIALECT).split())
    match meaning.tag:
        case "leaf":
            return f"{meaning.parts[1]}.{meaning.parts[2]}"
        case "rows":
            return "all columns"
        case _:
            parts = ", ".join(text for part in meaning.parts if (text := _described(part)))
            return f"{meaning.tag}({parts})" if parts else meaning.tag


def _shown_over(node: exp.Expr, columns: Columns) -> exp.Expr:
    """Replace a computed column by the expression that computes it."""
    if not isinstance(node, exp.Column) or isinstance(node.this, exp.Star):
        return node
    name, *fields = [part.name for part in node.parts]
    meaning = columns.get(name.casefold())
    if meaning is None:
        return node
    text = _described(meaning)
    text = text if _PLAIN.fullmatch(text) else f"({text})"
    return exp.Var(this=".".join([text, *fields]))
