"""Binds the text of a query to the columns of a stream: parses, checks, types and costs it. The only source of
:class:`Query`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sqlglot import exp

from epochal.declarations.intervals import fixed_interval, written_interval
from epochal.errors import PipelineError
from epochal.standing_queries.expression import Expression, conjuncts, normal
from epochal.standing_queries.parsing import Parsed, Text, parsed, position_of
from epochal.standing_queries.query import (
    AVERAGED,
    COUNTED,
    DEFAULT,
    GREATEST,
    LEAST,
    SUMMED,
    Aggregate,
    Group,
    Limits,
    Query,
    Remembered,
)
from epochal.standing_queries.refusals import refused
from epochal.standing_queries.scalars import Scalars, check_arguments, is_remember
from epochal.standing_queries.types import is_groupable, is_number, is_readable

_AGGREGATES: Final[dict[type[exp.Expr], str]] = {
    exp.Count: COUNTED,
    exp.CountIf: COUNTED,
    exp.Sum: SUMMED,
    exp.Avg: AVERAGED,
    exp.Min: LEAST,
    exp.Max: GREATEST,
}
_WRITTEN: Final = {
    "joins": "JOIN",
    "laterals": "LATERAL VIEW",
    "order": "ORDER BY",
    "sort": "SORT BY",
    "pivots": "PIVOT",
}
_CLAUSES: Final = frozenset({"expressions", "where", "group", "having", "kind", "operation_modifiers"})


def bound(text: str, columns: Mapping[str, str], limits: Limits = DEFAULT) -> Query:
    """The query of ``text`` over ``columns`` (name -> Spark's type).

    Raises ``QueryRefused`` with reason, position and fix.
    """
    if "\\" in text[: limits.characters]:
        raise refused("escape", at=text.index("\\"))
    statement = parsed(text, limits)
    return _Binder(columns, limits).query(statement)


class _Binder:
    def __init__(self, columns: Mapping[str, str], limits: Limits) -> None:
        self._scalars = Scalars(columns, limits)
        self._limits = limits

    def query(self, statement: Parsed) -> Query:
        select = statement.select
        _check_clauses(select)
        size, slide = self._window(statement.size, statement.slide)
        where = select.args.get("where")
        condition = None if where is None else self._scalars.condition(where.this)
        groups = self._groups(select)
        shown, aggregates, remembered = self._selected(select, groups)
        having = self._having(select.args.get("having"), aggregates)
        found = Query(shown, aggregates, conjuncts(condition), size, slide, conjuncts(having), remembered)
        if found.cost > self._limits.cost:
            raise refused("cost", found.cost, self._limits.cost, at=0)
        return found

    def _groups(self, select: exp.Select) -> list[tuple[exp.Expr, Expression]]:
        """The GROUP BY expressions, as written and bound."""
        clause = select.args.get("group")
        if clause is None:
            return []
        for name, value in clause.args.items():
            if value and name != "expressions":
                raise refused("group-by", f"GROUP BY {name.upper()}", at=_place(value))
        if len(clause.expressions) > self._limits.group_columns:
            raise refused("many-groups", len(clause.expressions), self._limits.group_columns, at=position_of(clause))
        names = {each.alias.casefold(): each.this for each in select.expressions if isinstance(each, exp.Alias)}
        found = []
        for node in clause.expressions:
            written = node
            if isinstance(node, exp.Column) and node.name.casefold() in names and not self._is_column(node):
                written = names[node.name.casefold()]
            bound = self._scalars.bound(written)
            if not is_groupable(bound.type) or not bound.columns:
                raise refused("group-by", written.sql(dialect="spark"), at=position_of(node))
            found.append((node, bound))
        return found

    def _having(self, clause: exp.Having | None, aggregates: tuple[Aggregate, ...]) -> Expression | None:
        """The HAVING condition over results. It refers to an aggregate by name, or repeats its expression."""
        if clause is None:
            return None
        condition = self._by_names(clause.this, aggregates, "having", "HAVING reads")
        for column in condition.find_all(exp.Column):
            is_written = "start" in column.this.meta and not (column.parent is not None and is_remember(column.parent))
            if is_written and self._is_column(column):
                raise refused(
                    "having", f"HAVING reads {column.name}, which is a column of the stream", at=position_of(column)
                )
        return self._results(aggregates).condition(condition)

    def _remembered(self, node: exp.Expr, aggregates: tuple[Aggregate, ...]) -> str:
        """The name of the aggregate whose previous value is requested."""
        return str(self._results(aggregates).bound(self._by_names(node, aggregates, "remember", "takes")).value)

    def _by_names(self, node: exp.Expr, aggregates: tuple[Aggregate, ...], reason: str, reads: str) -> exp.Expr:
        """An expression in which the names of selected aggregates replace their expressions."""
        named = {(each.function, _key(each.argument)): each.name for each in reversed(aggregates)}

        def as_selected(node: exp.Expr) -> exp.Expr:
            if not isinstance(node, (exp.AggFunc, exp.Filter)):
                return node
            found = self._aggregate(node)
            name = None if found is None else named.get((found[0], _key(found[1])))
            if name is None:
                raise refused(
                    reason, f"{reads} {node.sql(dialect='spark')}, which is not selected", at=position_of(node)
                )
            return exp.column(exp.to_identifier(name))

        return node.transform(as_selected)

    def _results(self, aggregates: tuple[Aggregate, ...]) -> Scalars:
        return Scalars({each.name: each.type for each in aggregates}, self._limits, of_results=True)

    def _is_column(self, node: exp.Column) -> bool:
        return self._scalars.has_column(node.name)

    def _selected(
        self, select: exp.Select, groups: list[tuple[exp.Expr, Expression]]
    ) -> tuple[tuple[Group, ...], tuple[Aggregate, ...], tuple[Remembered, ...]]:
        names: dict[str, exp.Expr] = {}
        named: dict[str, str] = {}
        aggregates = []
        remembering = []
        for item in select.expressions:
            node = item.this if isinstance(item, exp.Alias) else item
            aggregate = self._aggregate(node)
            name = self._name(item, node, names)
            if aggregate is not None:
                aggregates.append(Aggregate(name, *aggregate))
                continue
            if is_remember(node):
                remembering.append((name, node))
                continue
            if isinstance(node, exp.Star):
                raise refused("not-grouped", "*", at=position_of(node))
            within = next(filter(_is_of_results, node.find_all(exp.AggFunc, exp.Anonymous)), None)
            if within is None:
                key = self._scalars.bound(node).key
                if all(key != bound.key for _, bound in groups):
                    raise refused("not-grouped", node.sql(dialect="spark"), at=position_of(node))
                named[key] = name
                continue
            called = within.sql_name() if isinstance(within, exp.AggFunc) else within.name
            raise refused("nested-aggregate", called.lower(), at=position_of(within))
        if not aggregates:
            raise refused("no-aggregate", at=position_of(select.expressions[0]))
        if len(aggregates) > self._limits.aggregates:
            raise refused("many-aggregates", len(aggregates), self._limits.aggregates, at=position_of(select))
        # Group columns that are not selected are still part of the group.
        shown: dict[str, Group] = {}
        for node, bound in groups:
            name = named[bound.key] if bound.key in named else self._name(node, node, names)
            shown.setdefault(bound.key, Group(name, bound))
        all_of = tuple(aggregates)
        remembered = tuple(Remembered(name, self._remembered(node, all_of)) for name, node in remembering)
        return tuple(shown.values()), all_of, remembered

    def _name(self, item: exp.Expr, node: exp.Expr, names: dict[str, exp.Expr]) -> str:
        if isinstance(item, exp.Alias) and isinstance(item.args["alias"], exp.Identifier):
            name, at = str(item.alias), position_of(item.args["alias"])
        elif isinstance(node, exp.Column):
            name, at = str(node.name), position_of(node)
        elif isinstance(node, exp.Star):
            return "*"
        else:
            raise refused("without-name", node.sql(dialect="spark"), at=position_of(node))
        if name.casefold() in names:
            raise refused("same-name", repr(name), at=at)
        names[name.casefold()] = node
        return name

    def _aggregate(self, node: exp.Expr) -> tuple[str, Expression | None] | None:
        """The function and argument of an aggregate; ``None`` for other expressions."""
        condition: Expression | None = None
        if isinstance(node, exp.Filter):
            condition = self._scalars.condition(node.expression.this)
            node = node.this
        function = _AGGREGATES.get(type(node))
        if function is None:
            return None
        check_arguments(node)
        assert isinstance(node, exp.Func)  # all aggregates are
        called = node.sql_name().lower()
        if isinstance(node.this, exp.Distinct):
            raise refused("distinct", at=position_of(node))
        if isinstance(node, exp.Count) and (isinstance(node.this, exp.Star) or not node.this):
            return COUNTED, _only_where(condition, None)
        if node.expressions:
            raise refused("aggregate-arguments", called, "several arguments", at=position_of(node))
        if isinstance(node, exp.CountIf):
            both = self._scalars.condition(node.this)
            return COUNTED, _only_where(both if condition is None else normal("and", "boolean", both, condition), None)
        argument = self._scalars.bound(node.this)
        if function == COUNTED and argument.operation == "literal" and argument.value is not None:
            return COUNTED, _only_where(condition, None)
        if not _is_taken(function, argument.type):
            raise refused("aggregate-arguments", called, argument.type, at=position_of(node.this))
        return function, _only_where(condition, argument)

    def _window(self, size: Text, slide: Text | None) -> tuple[int, int]:
        length = self._interval(size)
        least, greatest = self._limits.least_window, self._limits.greatest_window
        if not least <= length <= greatest:
            raise refused(
                "window-length", repr(size.text), written_interval(least), written_interval(greatest), at=size.position
            )
        if slide is None:
            return length, length
        step = self._interval(slide)
        if step > length or length % step or length // step > self._limits.windows_of_a_row:
            raise refused("window-slide", repr(size.text), repr(slide.text), at=slide.position)
        return length, step

    def _interval(self, text: Text) -> int:
        try:
            return fixed_interval("the window", text.text, least=1)
        except PipelineError:
            raise refused("window-interval", repr(text.text), at=text.position) from None


def _is_of_results(node: exp.Expr) -> bool:
    return isinstance(node, exp.AggFunc) or is_remember(node)


def _key(argument: Expression | None) -> str | None:
    return None if argument is None else argument.key


def _only_where(condition: Expression | None, argument: Expression | None) -> Expression | None:
    """The argument of an aggregate with ``FILTER (WHERE ..)``: null, which aggregates ignore, in all other rows."""
    if condition is None:
        return argument
    then = Expression("literal", "int", value=1) if argument is None else argument
    return normal("if", then.type, condition, then, Expression("literal", then.type))


def _is_taken(function: str, type: str) -> bool:
    if function == COUNTED:
        return type != "void"
    if function in (LEAST, GREATEST):
        return is_readable(type) and type != "string"
    return is_number(type) and is_readable(type)


def _check_clauses(select: exp.Select) -> None:
    for name, value in select.args.items():
        if value and name not in _CLAUSES:
            raise refused("clause", _WRITTEN.get(name.strip("_"), name.strip("_").upper()), at=_place(value))
    for name in ("kind", "operation_modifiers"):
        if select.args.get(name):
            raise refused("clause", name.replace("_", " ").upper(), at=position_of(select))
    if not select.expressions:
        raise refused("no-aggregate", at=0)


def _place(value: object) -> int | None:
    first = value[0] if isinstance(value, list) and value else value
    return position_of(first) if isinstance(first, exp.Expr) else 0
