"""Comparison of two versions of an application by named parts: operators, state tables, sources, sinks, entries.
Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from epochal.pipeline.description import NO_OPERATORS, GraphDescription
from epochal.service.domain.entry_calls import DeclaredEntry, declared_entries
from epochal.snapshots.continuation import Continuation
from epochal.state.evolution import TableChange
from epochal.wire.preflight import Comparison, PartChange, StateChange


def compared(before: GraphDescription | None, after: GraphDescription, state: Continuation | None) -> Comparison:
    """``before``: graph of the version that created the snapshot. ``state``: changes of its tables; ``None`` if there
    is no snapshot to continue from."""
    changes = () if state is None else state.changes
    sources = _parts(_kinds(before, ("source",)), _kinds(after, ("source",)))
    sinks = _parts({} if before is None else before.sinks, after.sinks)
    operators = _parts(_operators(before), _operators(after))
    entries = entry_changes(before, after)
    refused = {change.table for change in changes if change.verdict == "dropped" and change.problems}
    gone = tuple(text for table, text in entries.removed.items() if table in refused)
    return Comparison(
        operators=operators,
        tables=tuple(StateChange.model_validate(change.model_dump(mode="json")) for change in changes),
        sources=sources,
        sinks=sinks,
        entries=entries.parts,
        problems=() if state is None else (*gone, *state.problems),
        warnings=(
            *(text for table, text in entries.removed.items() if table not in refused),
            *entries.said,
            *_warnings([part for part in operators if part.name not in entries.tables], changes, sources, sinks),
            *_event_times(before, after),
        )
        if before
        else (),
    )


def _operators(graph: GraphDescription | None) -> dict[str, str]:
    nodes = () if graph is None else graph.nodes
    return {node.name: node.type for node in nodes if node.type not in NO_OPERATORS}


def _kinds(graph: GraphDescription | None, types: Collection[str]) -> dict[str, str]:
    nodes = () if graph is None else graph.nodes
    return {node.name: str(node.description.get("kind", node.type)) for node in nodes if node.type in types}


def _event_times(before: GraphDescription, after: GraphDescription) -> Iterator[str]:
    """Changes of event time declarations."""
    was, now = _declarations(before), _declarations(after)
    for name in sorted({*was, *now}):
        if name not in now:
            yield f"Watermark {name!r} is removed: timers that depended on it no longer fire by its time."
        elif name in was and was[name] != now[name]:
            different = [key for key in now[name] if was[name].get(key) != now[name][key]]
            said = ", ".join(
                f"{key} {was[name].get(key) or 'unset'} → {now[name][key] or 'unset'}" for key in different
            )
            yield f"Watermark {name!r} changes: {said}. It continues from its current value and never decreases."


def _declarations(graph: GraphDescription) -> dict[str, dict[str, Any]]:
    return {node.name: node.description for node in graph.nodes if node.type == "watermark"}


def _parts(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[PartChange, ...]:
    return tuple(_part(name, before.get(name), after.get(name)) for name in sorted({*before, *after}))


def _part(name: str, before: str | None, after: str | None) -> PartChange:
    verdict: Literal["same", "added", "removed", "changed"] = "same" if before == after else "changed"
    if before is None:
        verdict = "added"
    elif after is None:
        verdict = "removed"
    return PartChange(name=name, verdict=verdict, before=before, after=after)


def _warnings(
    operators: Sequence[PartChange],
    tables: Sequence[TableChange],
    sources: Sequence[PartChange],
    sinks: Sequence[PartChange],
) -> list[str]:
    said = [f"Operator {part.name!r} is new and begins with empty state." for part in _of(operators, "added")]
    said += [
        f"State table {change.table!r} will be dropped: allowed by allow_dropped_state."
        for change in tables
        if change.verdict == "dropped" and not change.problems
    ]
    said += [
        f"State table {change.table!r} loses {', '.join(change.dropped)}: allowed by allow_dropped_state."
        for change in tables
        if change.verdict == "evolved" and change.dropped and not change.problems
    ]
    said += [note for change in tables if not change.problems for note in change.notes]
    said += [f"Source {part.name!r} is new and begins at its declared position." for part in _of(sources, "added")]
    said += [f"Source {part.name!r} is no longer read." for part in _of(sources, "removed")]
    said += [f"Sink {part.name!r} is new and will show later epochs only." for part in _of(sinks, "added")]
    said += [f"Sink {part.name!r} ({part.before}) receives no further epochs." for part in _of(sinks, "removed")]
    said += [
        f"Sink {part.name!r} moves from {part.before} to {part.after}, which will show later epochs only."
        for part in _of(sinks, "changed")
    ]
    return said


def _of(parts: Sequence[PartChange], verdict: str) -> list[PartChange]:
    return [part for part in parts if part.verdict == verdict]


@dataclass(frozen=True)
class EntryChanges:
    """``removed``: consequences of removed entries, by the state table of their answers. ``said``: changes of the
    remaining entries."""

    parts: tuple[PartChange, ...]
    removed: Mapping[str, str]
    said: tuple[str, ...]
    tables: frozenset[str]
    """State tables of answers, of both versions."""


def entry_changes(before: GraphDescription | None, after: GraphDescription) -> EntryChanges:
    """``before``: graph of the version that created the snapshot, if there is one."""
    was, now = _entries(before), _entries(after)
    names = sorted({*was, *now})
    new = [now[name] for name in names if name not in was]
    return EntryChanges(
        parts=_parts(_signatures(was), _signatures(now)),
        removed={was[name].table: _removed(was[name], new) for name in names if name not in now},
        said=tuple(text for name in names if name in was and name in now for text in _changed(was[name], now[name])),
        tables=frozenset(entry.table for entry in (*was.values(), *now.values())),
    )


def _entries(graph: GraphDescription | None) -> dict[str, DeclaredEntry]:
    return {} if graph is None else declared_entries(graph.model_dump(mode="json"))


def _signatures(entries: Mapping[str, DeclaredEntry]) -> dict[str, str]:
    return {name: _signature(entry) for name, entry in entries.items()}


def _signature(entry: DeclaredEntry) -> str:
    """``(key string, limit int, optional) → string``."""
    arguments = (
        f"{column.name} {column.type}{', optional' if column.name in entry.optional else ''}"
        for column in entry.arguments
    )
    return f"({', '.join(arguments)}) → {entry.returns or 'nothing'}"


def _removed(entry: DeclaredEntry, new: list[DeclaredEntry]) -> str:
    text = f"Entry {entry.name!r} is removed: it cannot be called, and waiting calls are not answered."
    alike = [other.name for other in new if other.arguments == entry.arguments]
    if not alike:
        return text
    return (
        f"{text} Entry {alike[0]!r} takes the same arguments: keep {entry.name!r} until all callers use the new name."
    )


def _changed(before: DeclaredEntry, after: DeclaredEntry) -> Iterator[str]:
    entry = f"Entry {after.name!r}"
    was, now = ({column.name: column.type for column in each.arguments} for each in (before, after))
    for name in sorted({*was, *now}):
        if name not in now:
            yield (
                f"{entry}: argument {name!r} is removed: calls that contain it are refused, and waiting calls are "
                "made without it."
            )
        elif name not in was:
            must = "" if name in after.optional else " New calls have to contain it."
            yield f"{entry}: argument {name!r} is new, and null in waiting calls.{must}"
        elif was[name] != now[name]:
            yield (
                f"{entry}: argument {name!r} becomes {now[name]} from {was[name]}: in waiting calls it is null if "
                "the value does not fit."
            )
        elif name in before.optional and name not in after.optional:
            yield f"{entry}: argument {name!r} is no longer optional; it is null in waiting calls without it."
    if before.returns != after.returns:
        yield (
            f"{entry} returns {after.returns or 'nothing'} instead of {before.returns or 'nothing'}: stored "
            "answers are not changed."
        )
