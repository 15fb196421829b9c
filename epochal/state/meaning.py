"""Comparison of the meanings of two definitions of state: canonical form and differences.

A relation is resolved to *branches*, one for each part of a union: the meaning of each column over the columns of the
sources, and the set of conditions that rows have passed. Renames, unused columns and the order of independent verbs do
not affect a branch. Columns of an upstream operator are expanded through its own definition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from epochal.state.canonical import Meaning, conjuncts, described, function_of, in_order, meaning_of, text_of
from epochal.state.declared_rows import widens
from epochal.state.definition import (
    ColumnDefinition,
    Definition,
    Drop,
    InputDefinition,
    Kept,
    Leaf,
    Opaque,
    OperatorDefinition,
    Passed,
    Relation,
    Select,
    Stateless,
    TableJoin,
    Timed,
    Union,
    Where,
    With,
)

What = Literal["function", "argument", "filter", "key", "input"]


@dataclass(frozen=True)
class Difference:
    """One difference in meaning. ``column`` ``None``: it concerns the whole operator. Texts are for display."""

    column: str | None
    what: What
    before: str
    after: str


@dataclass(frozen=True)
class Branch:
    """One part of a union. ``columns``: meanings by lower-case name. ``origin``: the leaf that rows come from."""

    origin: Meaning
    columns: Mapping[str, Meaning]
    filters: frozenset[Meaning] = frozenset()

    def with_filters(self, filters: Iterable[Meaning]) -> Branch:
        return Branch(self.origin, self.columns, self.filters | frozenset(filters))

    def with_columns(self, columns: Mapping[str, Meaning]) -> Branch:
        return Branch(self.origin, columns, self.filters)

    @cached_property
    def passed(self) -> Meaning:
        """The origin and the conditions."""
        return Meaning("passed", (self.origin, *in_order(self.filters)))

    @cached_property
    def rows(self) -> Meaning:
        """The meaning of all columns, for code that may read any column."""
        return Meaning("rows", tuple(Meaning(name, (each,)) for name, each in sorted(self.columns.items())))


@dataclass
class Definitions:
    """The definitions of one version's state tables, by operator."""

    operators: Mapping[str, OperatorDefinition]
    _branches: dict[int, tuple[Branch, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, definitions: Iterable[tuple[str, Definition | None]]) -> Definitions:
        """Build from pairs of operator and definition, one for each state table."""
        found = {name: each.operator for name, each in definitions if each is not None and each.operator is not None}
        return cls(found)

    def branches(self, relation: Relation) -> tuple[Branch, ...]:
        known = self._branches.get(id(relation))
        if known is None:
            known = self._branches[id(relation)] = tuple(self._resolved(relation))
        return known

    def _resolved(self, relation: Relation) -> Iterator[Branch]:
        match relation:
            case Leaf():
                yield self._leaf(relation)
            case Union():
                for each in relation.of:
                    yield from self.branches(each)
            case Opaque():
                inputs = [branch for each in relation.of for branch in self.branches(each)]
                yield _opaque(relation, inputs)
            case Stateless():
                yield self._output(relation.name, relation.columns, relation.definition)
            case _:
                for branch in self.branches(relation.of):
                    yield self._step(relation, branch)

    def _step(self, relation: Select | With | Where | Drop | TableJoin | Timed | Kept, branch: Branch) -> Branch:
        columns = branch.columns
        match relation:
            case Where(condition=condition):
                return branch.with_filters(conjuncts(condition, columns))
            case Drop(columns=names):
                gone = {name.casefold() for name in names}
                return branch.with_columns({name: each for name, each in columns.items() if name not in gone})
            case With():
                computed = {name.casefold(): meaning_of(text, columns) for name, text in relation.columns.items()}
                extended = branch.with_columns({**columns, **computed})
                return extended.with_filters(_generated(computed.values())) if relation.multiplies else extended
            case Select():
                computed = {}
                for name, text in relation.columns:
                    computed |= columns if name == "*" else {name.casefold(): meaning_of(text, columns)}
                selected = branch.with_columns(computed)
                return selected.with_filters(_generated(computed.values())) if relation.multiplies else selected
            case Timed(column=column):
                time = columns.get(column.casefold()) or Meaning("name", (column.casefold(),))
                return branch.with_filters([Meaning("has an event time", (time,))])
            case Kept():
                return branch.with_filters([Meaning(f"{relation.side} of {relation.owner}")])
            case TableJoin():
                return self._joined(relation, branch)

    def _joined(self, relation: TableJoin, branch: Branch) -> Branch:
        """Add the table's rows to the conditions: the join may drop a row without a partner."""
        added: dict[str, Meaning] = {}
        conditions: list[Meaning] = []
        for table in self.branches(relation.table):
            on = [Meaning("on", (_column(branch.columns, name), _column(table.columns, name))) for name in relation.on]
            conditions.append(Meaning(f"{relation.how} join", (table.passed, *in_order(on))))
            if "semi" not in relation.how and "anti" not in relation.how:
                keys = {name.casefold() for name in relation.on}
                joined = {name: each for name, each in table.columns.items() if name not in keys}
                added |= {name: Meaning("joined", (each, *in_order(on))) for name, each in joined.items()}
        return branch.with_columns({**branch.columns, **added}).with_filters(conditions)

    def _leaf(self, leaf: Leaf) -> Branch:
        definition = self.operators.get(leaf.name) if leaf.kind == "operator" else None
        if definition is not None:
            return self._output(leaf.name, tuple(leaf.columns), definition)
        origin = Meaning("origin", (leaf.kind, leaf.name))
        return Branch(
            origin,
            {
                name.casefold(): Meaning("leaf", (leaf.kind, leaf.name, name.casefold(), type))
                for name, type in leaf.columns.items()
            },
        )

    def _output(self, name: str, columns: tuple[str, ...], definition: OperatorDefinition) -> Branch:
        """Output of an operator: computed and passed columns by the meaning of its inputs, other columns by name."""
        inputs = [self.branches(each.rows) for each in definition.inputs]
        known = {column.casefold(): each for column, each in definition.output.items()}
        identity = Meaning("operator", (name, *(code.identity for code in definition.code)))
        if not definition.code and definition.output:
            identity = Meaning("operator", (name, *self._grouped(definition)))
        found: dict[str, Meaning] = {}
        for column in columns:
            output = known.get(column.casefold())
            if output is None:
                parts: tuple[Meaning, ...] = ()
            elif isinstance(output, Passed):
                parts = in_order(_column(branch.columns, output.column) for branch in inputs[output.input])
            else:
                parts = in_order(meaning_of(output, branch.columns) for branch in inputs[0])
            if parts:
                found[column.casefold()] = Meaning("of", (identity, *parts))
            else:
                found[column.casefold()] = Meaning("of", (identity, column.casefold()))
        return Branch(identity, found)

    def _grouped(self, definition: OperatorDefinition) -> Iterator[Meaning]:
        """The keys and the input rows of the operator."""
        for each in definition.inputs:
            for branch in self.branches(each.rows):
                keys = in_order(_column(branch.columns, key) for key in each.keys)
                yield Meaning("input", (branch.passed, Meaning("keys", keys)))


def differences(
    before: Definition, after: Definition, definitions: tuple[Definitions, Definitions]
) -> Iterator[Difference]:
    """Differences in meaning between two definitions of a state table. ``definitions``: all tables of both versions.

    Compares aggregates by function and argument and, on the first table of each operator, its keys and inputs.
    """
    inputs = _inputs(before, definitions[0]), _inputs(after, definitions[1])
    found: dict[str, list[Difference]] = {}
    for name, was in before.columns.items():
        now = after.columns.get(name)
        if now is not None:
            found.setdefault(now.column or name, []).extend(_of_aggregate(now.column or name, was, now, inputs))
    yield from (_of_parts(each) for each in found.values() if each)
    if before.operator is not None and after.operator is not None:
        yield from _of_operator(before.operator, after.operator, definitions)


def _inputs(definition: Definition, definitions: Definitions) -> tuple[Branch, ...]:
    operator = definition.operator
    return () if operator is None or not operator.inputs else definitions.branches(operator.inputs[0].rows)


def _of_parts(found: Sequence[Difference]) -> Difference:
    """Combine the differences of the aggregates of an author's column into one."""
    function = next((each for each in found if each.what == "function"), None)
    if function is not None:
        return function
    before, after = (dict.fromkeys(texts) for texts in zip(*((each.before, each.after) for each in found), strict=True))
    return Difference(found[0].column, found[0].what, " and ".join(before), " and ".join(after))


def _of_aggregate(
    name: str, was: ColumnDefinition, now: ColumnDefinition, inputs: tuple[tuple[Branch, ...], tuple[Branch, ...]]
) -> Iterator[Difference]:
    texts = text_of(was.aggregate), text_of(now.aggregate)
    if was.merge != now.merge or function_of(was.aggregate) != function_of(now.aggregate):
        yield Difference(name, "function", *texts)
        return
    before, after = (
        Counter(meaning_of(each.aggregate, branch.columns) for branch in branches)
        for each, branches in zip((was, now), inputs, strict=True)
    )
    if not _same_all(before, after):
        if texts[0] == texts[1]:
            texts = (_all_described(before), _all_described(after))
        yield Difference(name, "argument", *texts)


def _of_operator(
    before: OperatorDefinition, after: OperatorDefinition, definitions: tuple[Definitions, Definitions]
) -> Iterator[Difference]:
    if len(before.inputs) != len(after.inputs):
        yield Difference(None, "input", f"{len(before.inputs)} inputs", f"{len(after.inputs)} inputs")
        return
    for was, now in zip(before.inputs, after.inputs, strict=True):
        if not was.kept and not now.kept:
            continue
        branches = definitions[0].branches(was.rows), definitions[1].branches(now.rows)
        yield from _of_rows(branches)
        yield from _of_keys(was, now, branches)
        yield from _of_read(was, now, branches)


def _of_rows(branches: tuple[tuple[Branch, ...], tuple[Branch, ...]]) -> Iterator[Difference]:
    origins = tuple(Counter(branch.origin for branch in side) for side in branches)
    if not _same_all(*origins):
        yield Difference(None, "input", *map(_all_described, origins))
        return
    passed = tuple(Counter(branch.passed for branch in side) for side in branches)
    if not _same_all(*passed):
        yield Difference(None, "filter", *map(_filters_described, branches))


def _of_keys(
    was: InputDefinition, now: InputDefinition, branches: tuple[tuple[Branch, ...], tuple[Branch, ...]]
) -> Iterator[Difference]:
    if len(was.keys) != len(now.keys):
        return  # a layout change, which the layout check refuses
    for old, new in zip(was.keys, now.keys, strict=True):
        before, after = _over(branches[0], old), _over(branches[1], new)
        if not _same_all(before, after):
            yield Difference(new, "key", _all_described(before), _all_described(after))
    if was.time is not None and now.time is not None:
        before, after = _over(branches[0], was.time), _over(branches[1], now.time)
        if not _same_all(before, after):
            yield Difference(now.time, "input", _all_described(before), _all_described(after))


def _of_read(
    was: InputDefinition, now: InputDefinition, branches: tuple[tuple[Branch, ...], tuple[Branch, ...]]
) -> Iterator[Difference]:
    """Differences of the columns that the operator reads. An added column affects no existing state."""
    keys = {name.casefold() for name in (*was.keys, *now.keys, was.time or "", now.time or "")}
    before = _read(was, branches[0])
    after = {name for branch in branches[1] for name in branch.columns}
    for name in sorted(before - keys):
        old = _over(branches[0], name)
        if name not in after:
            yield Difference(name, "input", _all_described(old), "no such column")
            continue
        new = _over(branches[1], name)
        if not _same_all(old, new):
            yield Difference(name, "input", _all_described(old), _all_described(new))


def _read(input: InputDefinition, branches: tuple[Branch, ...]) -> set[str]:
    there = {name for branch in branches for name in branch.columns}
    return there if input.reads is None else there & {name.casefold() for name in input.reads}


def _over(branches: tuple[Branch, ...], name: str) -> Counter[Meaning]:
    """A column with the origin of its rows, for each branch."""
    return Counter(Meaning("over", (branch.origin, _column(branch.columns, name))) for branch in branches)


def _column(columns: Mapping[str, Meaning], name: str) -> Meaning:
    return columns.get(name.casefold()) or Meaning("name", (name.casefold(),))


def _generated(computed: Iterable[Meaning]) -> Iterator[Meaning]:
    """A condition for each column that yields several rows per row: it determines the multiplicity of rows."""
    return (Meaning("rows of", (each,)) for each in computed if _multiplies(each))


_GENERATORS = ("explode", "posexplode", "inline", "stack", "json_tuple", "variant_explode")


def _multiplies(meaning: Meaning) -> bool:
    return meaning.tag.casefold().startswith(_GENERATORS) or any(
        _multiplies(part) for part in meaning.parts if isinstance(part, Meaning)
    )


def _opaque(relation: Opaque, inputs: list[Branch]) -> Branch:
    label = relation.label if relation.code is None else relation.code.identity
    rows = in_order(branch.rows for branch in inputs)
    columns = {name.casefold(): Meaning("code", (label, name.casefold(), *rows)) for name in relation.columns}
    origin = Meaning("by code", in_order(branch.origin for branch in inputs))
    filters = {each for branch in inputs for each in branch.filters}
    return Branch(origin, columns, frozenset({Meaning("rows of code", (label, *rows)), *filters}))


def _same_all(before: Counter[Meaning], after: Counter[Meaning]) -> bool:
    if before == after:
        return True
    left = list((after - before).elements())
    for each in (before - after).elements():
        found = next((other for other in left if same(each, other)), None)
        if found is None:
            return False
        left.remove(found)
    return not left


def same(before: Meaning | str, after: Meaning | str) -> bool:
    """Return true if state computed from ``before`` is valid for ``after``: leaves may have widened types, and rows
    that code reads may have additional columns."""
    if isinstance(before, str) or isinstance(after, str) or before == after:
        return before == after
    if before.tag != after.tag:
        return False
    if before.tag == "leaf":
        (*was, old), (*now, new) = before.parts, after.parts
        return was == now and isinstance(old, str) and isinstance(new, str) and (old == new or widens(old, new))
    if before.tag == "rows":
        there = {part.tag: part for part in after.parts if isinstance(part, Meaning)}
        return all(
            part.tag in there and same(part, there[part.tag]) for part in before.parts if isinstance(part, Meaning)
        )
    if len(before.parts) != len(after.parts):
        return False
    if before.tag in _UNORDERED:
        return _same_all(
            Counter(part for part in before.parts if isinstance(part, Meaning)),
            Counter(part for part in after.parts if isinstance(part, Meaning)),
        ) and [part for part in before.parts if isinstance(part, str)] == [
            part for part in after.parts if isinstance(part, str)
        ]
    return all(same(*pair) for pair in zip(before.parts, after.parts, strict=True))


_UNORDERED = frozenset({"And", "Or", "passed", "code", "rows of code", "by code", "keys", "of"})
"""Tags whose parts are sorted by digest; a widened leaf changes the digest."""


def _all_described(meanings: Counter[Meaning]) -> str:
    return "; ".join(sorted(described(_bare(each)) for each in meanings.elements())) or "nothing"


def _bare(meaning: Meaning) -> Meaning:
    """The meaning without its origin, which the column names already show."""
    last = meaning.parts[-1] if meaning.parts else ""
    return last if meaning.tag == "over" and isinstance(last, Meaning) else meaning


def _filters_described(branches: tuple[Branch, ...]) -> str:
    said = (" AND ".join(sorted(map(described, branch.filters))) or "no condition" for branch in branches)
    return "; ".join(sorted(said))
