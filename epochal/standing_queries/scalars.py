"""Binds scalar expressions: resolves names to columns, assigns Spark's types, and makes implicit casts explicit.

Expressions without a rule here are refused. No bound expression can fail for any row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from sqlglot import exp

from epochal.standing_queries.expression import Expression, normal
from epochal.standing_queries.parsing import cast, fits, number, position_of, time
from epochal.standing_queries.query import Limits
from epochal.standing_queries.refusals import refused
from epochal.standing_queries.types import FLOATS, INTEGERS, common_type, is_integer, is_number, is_readable
from epochal.state.type_names import decimal_of

_COMPARISONS: Final[dict[type[exp.Expr], str]] = {
    exp.EQ: "eq",
    exp.NullSafeEQ: "eq_null_safe",
    exp.LT: "lt",
    exp.LTE: "le",
    exp.GT: "gt",
    exp.GTE: "ge",
}
_ARITHMETIC: Final[dict[type[exp.Expr], str]] = {exp.Add: "add", exp.Sub: "subtract", exp.Mul: "multiply"}
_TRIED: Final = {"SafeAdd": "try_add", "SafeSubtract": "try_subtract", "SafeMultiply": "try_multiply"}
_TEXTS: Final[dict[type[exp.Expr], str]] = {
    exp.StartsWith: "starts_with",
    exp.EndsWith: "ends_with",
    exp.Contains: "contains",
}
_TIME_PARTS: Final[dict[type[exp.Expr], str]] = {
    exp.Year: "year",
    exp.Month: "month",
    exp.Day: "day",
    exp.DayOfMonth: "day",
    exp.DayOfWeek: "day_of_week",
    exp.Hour: "hour",
    exp.Minute: "minute",
}
_READ: Final = frozenset(
    {"this", "expression", "expressions", "low", "high", "true", "false", "ifs", "default", "to", "is_string"}
)
"""The arguments of a node that the rules read; the parser may set others."""
_READ_OF: Final = frozenset(
    {("negate", exp.Like), ("safe", exp.Div), ("safe", exp.TryCast), ("big_int", exp.Count), ("table", exp.Column)}
)
_REGULAR: Final = (exp.RegexpLike, exp.RegexpILike, exp.SimilarTo)


class Scalars:
    """The expressions over ``columns`` (name -> Spark's type) of the stream, or, with wider decimals, ``of_results``.
    Names are case-insensitive, as in Spark."""

    def __init__(self, columns: Mapping[str, str], limits: Limits, of_results: bool = False) -> None:
        self._columns = {name.casefold(): (name, type.lower()) for name, type in columns.items()}
        self._names = ", ".join(columns)
        self._limits = limits
        self._of_results = of_results

    def has_column(self, name: str) -> bool:
        return name.casefold() in self._columns

    def condition(self, node: exp.Expr, depth: int = 0) -> Expression:
        """A boolean expression. Raises ``QueryRefused``."""
        found = self.bound(node, depth)
        if found.type != "boolean":
            raise refused("condition", _written(node), found.type, at=position_of(node))
        return found

    def bound(self, node: exp.Expr, depth: int = 0) -> Expression:
        """A typed expression. Raises ``QueryRefused``."""
        if depth > self._limits.depth:
            raise refused("too-deep", at=position_of(node))
        depth += 1
        for kinds, bind in _RULES:
            if isinstance(node, kinds):
                check_arguments(node)
                return bind(self, node, depth)
        raise _unknown(node)

    def _paren(self, node: exp.Paren, depth: int) -> Expression:
        return self.bound(node.this, depth)

    def _column(self, node: exp.Column, depth: int) -> Expression:
        at = position_of(node)
        if not isinstance(node.this, exp.Identifier) or node.args.get("table") is not None:
            raise refused("unknown-column", _written(node), self._names, at=at)
        known = self._columns.get(node.name.casefold())
        if known is None:
            raise refused("unknown-column", repr(node.name), self._names, at=at)
        name, type = known
        if not is_readable(type) and not (self._of_results and decimal_of(type)):
            raise refused("column-type", repr(name), type, at=at)
        return Expression("column", type, value=name)

    def _literal(self, node: exp.Literal, depth: int) -> Expression:
        return Expression("literal", "string", value=node.this) if node.is_string else number(node, node.this)

    def _negative(self, node: exp.Neg, depth: int) -> Expression:
        if isinstance(node.this, exp.Literal) and not node.this.is_string:
            return number(node, f"-{node.this.this}")
        value = self.bound(node.this, depth)
        if value.type not in FLOATS:
            raise refused("may-fail", f"the negative of {value.type}", at=position_of(node))
        return normal("negative", value.type, value)

    def _boolean(self, node: exp.Boolean, depth: int) -> Expression:
        return Expression("literal", "boolean", value=bool(node.this))

    def _null(self, node: exp.Null, depth: int) -> Expression:
        return Expression("literal", "void")

    def _connected(self, node: exp.And | exp.Or, depth: int) -> Expression:
        operation = "and" if isinstance(node, exp.And) else "or"
        return normal(operation, "boolean", *(self.condition(part, depth) for part in node.flatten()))

    def _not(self, node: exp.Not, depth: int) -> Expression:
        return normal("not", "boolean", self.condition(node.this, depth))

    def _is(self, node: exp.Is, depth: int) -> Expression:
        value, asked = self.bound(node.this, depth), node.expression
        if isinstance(asked, exp.Null):
            return normal("is_null", "boolean", value)
        if isinstance(asked, exp.Boolean) and value.type == "boolean":
            return normal("eq_null_safe", "boolean", value, self.bound(asked))
        raise _unknown(node)

    def _compared(self, node: exp.Binary, depth: int) -> Expression:
        sides = [self.bound(node.this, depth), self.bound(node.expression, depth)]
        if isinstance(node, exp.NEQ):
            return normal("not", "boolean", self._comparison("eq", node, *sides))
        return self._comparison(_COMPARISONS[type(node)], node, *sides)

    def _comparison(self, operation: str, node: exp.Expr, one: Expression, other: Expression) -> Expression:
        if "void" in (one.type, other.type):
            raise refused("null-literal", at=position_of(node))
        one, other = self._alike(node, "a comparison", one, other)
        return normal(operation, "boolean", one, other)

    def _between(self, node: exp.Between, depth: int) -> Expression:
        value = self.bound(node.this, depth)
        low, high = self.bound(node.args["low"], depth), self.bound(node.args["high"], depth)
        return normal(
            "and", "boolean", self._comparison("ge", node, value, low), self._comparison("le", node, value, high)
        )

    def _in(self, node: exp.In, depth: int) -> Expression:
        values, at = node.expressions, position_of(node)
        if not values:
            raise refused("subquery", at=at)
        if len(values) > self._limits.list_values:
            raise refused("long-list", len(values), self._limits.list_values, at=at)
        value, listed = self.bound(node.this, depth), [self.bound(each, depth) for each in values]
        for each, part in zip(listed, values, strict=True):
            if each.operation != "literal":
                raise refused("types", "IN", "an expression", at=position_of(part))
            if each.type == "void":
                raise refused("null-literal", at=at)
        type = value.type
        for each, part in zip(listed, values, strict=True):
            both = common_type(type, self._read_as(each, type, part).type)
            if both is None:
                raise refused("types", "IN", f"{type} and {each.type}", at=position_of(part))
            type = both
        value = cast(value, type)
        found = {cast.key: cast.value for cast in (cast(self._read_as(e, type, node), type) for e in listed)}
        return normal("in", "boolean", value, value=tuple(found[key] for key in sorted(found)))

    def _like(self, node: exp.Like, depth: int) -> Expression:
        found = normal("like", "boolean", self._string(node, depth), value=_text("LIKE", node.expression))
        return normal("not", "boolean", found) if node.args.get("negate") else found

    def _with_text(self, node: exp.Expr, depth: int) -> Expression:
        operation = _TEXTS[type(node)]
        return normal(operation, "boolean", self._string(node, depth), value=_text(operation, node.expression))

    def _called(self, node: exp.Anonymous, depth: int) -> Expression:
        if not is_remember(node):
            raise _unknown(node)
        at = position_of(node)
        if not self._of_results:
            raise refused("remember", "reads results, but this expression is over rows", at=at)
        if len(node.expressions) != 1 or not isinstance(node.expressions[0], exp.Column):
            raise refused("remember", "takes only the name of one aggregate", at=at)
        if not self.has_column(node.expressions[0].name):
            raise refused("remember", f"takes {_written(node.expressions[0])}, which is not an aggregate", at=at)
        of = self._column(node.expressions[0], depth)
        return Expression("remember", of.type, value=of.value)

    def _length(self, node: exp.Length, depth: int) -> Expression:
        return normal("length", "int", self._string(node, depth))

    def _string(self, node: exp.Expr, depth: int) -> Expression:
        value = self.bound(node.this, depth)
        if value.type != "string":
            raise refused("types", _name(node), value.type, at=position_of(node))
        return value

    def _reckoned(self, node: exp.Binary, depth: int) -> Expression:
        operation = _ARITHMETIC[type(node)]
        one, other = self._numbers(node, operation, depth)
        type_ = common_type(one.type, other.type)
        if type_ is None or type_ not in FLOATS:
            raise refused("may-fail", f"{operation} of {one.type} and {other.type}", at=position_of(node))
        return normal(operation, type_, cast(one, type_), cast(other, type_))

    def _divided(self, node: exp.Div | exp.Mod, depth: int) -> Expression:
        remainder = isinstance(node, exp.Mod)
        one, other = self._numbers(node, "division", depth)
        if other.operation != "literal" or float(other.value) == 0:
            raise refused("may-fail", "a division", at=position_of(node))
        if not remainder:
            _check_no_decimal_quotient(node, one, other)
            return normal("divide", "double", cast(one, "double"), cast(other, "double"))
        if not (is_integer(one.type) and is_integer(other.type)):
            raise refused("types", "%", f"{one.type} and {other.type}", at=position_of(node))
        type_ = common_type(one.type, other.type) or "bigint"
        return normal("remainder", type_, cast(one, type_), cast(other, type_))

    def _tried(self, node: exp.Expr, depth: int) -> Expression:
        operation = _TRIED[type(node).__name__]
        one, other = self._numbers(node, operation, depth)
        type_ = common_type(one.type, other.type)
        if type_ is None or decimal_of(type_) is not None:
            raise refused("types", operation, f"{one.type} and {other.type}", at=position_of(node))
        return normal(operation, type_, cast(one, type_), cast(other, type_))

    def _try_divide(self, node: exp.Expr, depth: int) -> Expression:
        one, other = self._numbers(node, "try_divide", depth)
        _check_no_decimal_quotient(node, one, other)
        return normal("try_divide", "double", cast(one, "double"), cast(other, "double"))

    def _numbers(self, node: exp.Expr, what: str, depth: int) -> tuple[Expression, Expression]:
        one, other = self.bound(node.this, depth), self.bound(node.expression, depth)
        for side in (one, other):
            if not is_number(side.type):
                raise refused("types", what, f"{one.type} and {other.type}", at=position_of(node))
        return one, other

    def _part_of_time(self, node: exp.Expr, depth: int) -> Expression:
        inner = node.this
        while isinstance(inner, (exp.TsOrDsToDate, exp.TsOrDsToTimestamp)):
            inner = inner.this
        value, part = self.bound(inner, depth), _TIME_PARTS[type(node)]
        if value.type != "timestamp" and (value.type != "date" or part in ("hour", "minute")):
            raise refused("types", part, value.type, at=position_of(node))
        return normal(part, "int", value)

    def _date(self, node: exp.Expr, depth: int) -> Expression:
        value = self.bound(node.this, depth)
        if value.type not in ("timestamp", "date"):
            raise refused("cast", value.type, "date", at=position_of(node))
        return cast(value, "date")

    def _coalesce(self, node: exp.Coalesce, depth: int) -> Expression:
        values = [self.bound(each, depth) for each in (node.this, *node.expressions)]
        alike = self._alike(node, "coalesce", *values)
        return normal("coalesce", alike[0].type, *alike)

    def _if(self, node: exp.If, depth: int) -> Expression:
        otherwise = node.args.get("false")
        then = self.bound(node.args["true"], depth)
        other = Expression("literal", "void") if otherwise is None else self.bound(otherwise, depth)
        return self._choice(node, self.condition(node.this, depth), then, other)

    def _case(self, node: exp.Case, depth: int) -> Expression:
        default = node.args.get("default")
        found = Expression("literal", "void") if default is None else self.bound(default, depth)
        results = [self.bound(branch.args["true"], depth) for branch in node.args["ifs"]]
        *results, found = self._alike(node, "CASE", *results, found)
        for branch, result in zip(reversed(node.args["ifs"]), reversed(results), strict=True):
            if node.this is None:
                condition = self.condition(branch.this, depth)
            else:
                compared = exp.EQ(this=node.this, expression=branch.this)
                condition = self._compared(compared, depth)
            found = self._choice(node, condition, result, found)
        return found

    def _choice(self, node: exp.Expr, condition: Expression, then: Expression, other: Expression) -> Expression:
        then, other = self._alike(node, "a choice", then, other)
        return normal("if", then.type, condition, then, other)

    def _cast_to(self, node: exp.Cast, depth: int) -> Expression:
        to = node.to.sql(dialect="spark").lower()
        if isinstance(node.this, exp.Literal) and node.this.is_string and to in ("date", "timestamp"):
            return self._read_as(self.bound(node.this, depth), to, node.this)
        value = self.bound(node.this, depth)
        if value.type == "void" and is_readable(to):
            return Expression("literal", to)
        widening = value.type in INTEGERS and to in INTEGERS and INTEGERS.index(value.type) <= INTEGERS.index(to)
        literal = value.operation == "literal" and is_integer(value.type) and is_integer(to) and fits(value.value, to)
        to_double = is_number(value.type) and to == "double"
        if not (value.type == to or widening or literal or to_double or (value.type, to) == ("timestamp", "date")):
            raise refused("cast", value.type, to, at=position_of(node))
        return cast(value, to)

    def _alike(self, node: exp.Expr, what: str, *values: Expression) -> list[Expression]:
        """The values with casts to one type."""
        type = "void"
        for value in values:
            if value.type != "string" or value.operation != "literal":
                both = common_type(type, value.type)
                if both is None:
                    raise refused("types", what, f"{type} and {value.type}", at=position_of(node))
                type = both
        if type == "void" and any(value.type == "string" for value in values):
            type = "string"
        read = [self._read_as(value, type, node) for value in values]
        if any(common_type(type, value.type) != type for value in read):
            raise refused("types", what, f"{type} and string", at=position_of(node))
        if type == "void":
            raise refused("null-literal", at=position_of(node))
        return [cast(value, type) for value in read]

    def _read_as(self, value: Expression, type: str, node: exp.Expr) -> Expression:
        """A text literal beside a date or a time, as a literal of that type."""
        if value.operation != "literal" or value.type != "string" or type not in ("date", "timestamp"):
            return value
        try:
            return time(str(value.value).strip(), type)
        except ValueError:
            raise refused("literal", f"{value.value!r} as {type}", at=position_of(node)) from None


_RULES: Final[tuple[tuple[Any, Callable[[Any, Any, int], Expression]], ...]] = (
    (exp.Paren, Scalars._paren),
    (exp.Column, Scalars._column),
    (exp.Literal, Scalars._literal),
    (exp.Boolean, Scalars._boolean),
    (exp.Null, Scalars._null),
    (exp.Neg, Scalars._negative),
    ((exp.And, exp.Or), Scalars._connected),
    (exp.Not, Scalars._not),
    (exp.Is, Scalars._is),
    ((*_COMPARISONS, exp.NEQ), Scalars._compared),
    (exp.Between, Scalars._between),
    (exp.In, Scalars._in),
    (exp.Like, Scalars._like),
    (tuple(_TEXTS), Scalars._with_text),
    (exp.Length, Scalars._length),
    (exp.Anonymous, Scalars._called),
    (tuple(_ARITHMETIC), Scalars._reckoned),
    ((exp.Div, exp.Mod), Scalars._divided),
    (tuple(getattr(exp, name) for name in _TRIED), Scalars._tried),
    (exp.SafeDivide, Scalars._try_divide),
    (tuple(_TIME_PARTS), Scalars._part_of_time),
    ((exp.TsOrDsToDate, exp.Date), Scalars._date),
    (exp.Coalesce, Scalars._coalesce),
    (exp.If, Scalars._if),
    (exp.Case, Scalars._case),
    (exp.Cast, Scalars._cast_to),
)


def is_remember(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous) and str(node.name).casefold() == "remember"


def check_arguments(node: exp.Expr) -> None:
    """Raises ``QueryRefused`` if a node has an argument that no rule reads."""
    for name, value in node.args.items():
        if value and name not in _READ and (name, type(node)) not in _READ_OF:
            raise refused("function", f"{name.strip('_').upper()} of {_name(node)}", at=position_of(node))


def _check_no_decimal_quotient(node: exp.Expr, one: Expression, other: Expression) -> None:
    if not {one.type, other.type}.intersection(FLOATS) and not (is_integer(one.type) and is_integer(other.type)):
        raise refused("types", "a division", f"{one.type} and {other.type}", at=position_of(node))


def _text(what: str, node: exp.Expr | None) -> str:
    if not isinstance(node, exp.Literal) or not node.is_string:
        raise refused("text-argument", what, at=None if node is None else position_of(node))
    return str(node.this)


def _unknown(node: exp.Expr) -> Exception:
    if isinstance(node, _REGULAR) or "regexp" in type(node).__name__.lower():
        return refused("regular-expression", at=position_of(node))
    if isinstance(node, exp.AggFunc):
        return refused("nested-aggregate", _name(node), at=position_of(node))
    if isinstance(node, exp.Query):
        return refused("subquery", at=position_of(node))
    return refused("function", _name(node), at=position_of(node))


def _name(node: exp.Expr) -> str:
    """The SQL name of a function or an operator."""
    if isinstance(node, exp.Anonymous):
        return str(node.name)
    return node.sql_name().lower() if isinstance(node, exp.Func) else type(node).__name__.lower()


def _written(node: exp.Expr) -> str:
    return str(node.sql(dialect="spark"))
