"""The entries of two versions, compared by name: what those who call the application have to know. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from epochal.pipeline.description import GraphDescription
from epochal.service.domain.entries import DeclaredEntry, declared_entries
from epochal.wire.preflight import PartChange


@dataclass(frozen=True)
class EntryChanges:
    """``removed``: by the state table of its answers, what it means that an entry is gone; ``said``: what becomes of
    those that stay."""

    parts: tuple[PartChange, ...]
    removed: Mapping[str, str]
    said: tuple[str, ...]
    tables: frozenset[str]
    """The state tables of answers of both versions."""


def entry_changes(before: GraphDescription | None, after: GraphDescription) -> EntryChanges:
    """``before``: the graph of the version that made the snapshot, where there is one."""
    was, now = _entries(before), _entries(after)
    names = sorted({*was, *now})
    new = [now[name] for name in names if name not in was]
    return EntryChanges(
        parts=tuple(_part(name, was.get(name), now.get(name)) for name in names),
        removed={was[name].table: _removed(was[name], new) for name in names if name not in now},
        said=tuple(text for name in names if name in was and name in now for text in _changed(was[name], now[name])),
        tables=frozenset(entry.table for entry in (*was.values(), *now.values())),
    )


def _entries(graph: GraphDescription | None) -> dict[str, DeclaredEntry]:
    return {} if graph is None else declared_entries(graph.model_dump(mode="json"))


def _part(name: str, before: DeclaredEntry | None, after: DeclaredEntry | None) -> PartChange:
    was, now = (None if entry is None else _signature(entry) for entry in (before, after))
    verdict: Literal["same", "added", "removed", "changed"] = "same" if was == now else "changed"
    if was is None:
        verdict = "added"
    elif now is None:
        verdict = "removed"
    return PartChange(name=name, verdict=verdict, before=was, after=now)


def _signature(entry: DeclaredEntry) -> str:
    """``(key string, limit int, optional) → string``."""
    arguments = (
        f"{column.name} {column.type}{', optional' if column.name in entry.optional else ''}"
        for column in entry.arguments
    )
    return f"({', '.join(arguments)}) → {entry.returns or 'nothing'}"


def _removed(entry: DeclaredEntry, new: list[DeclaredEntry]) -> str:
    text = f"Entry {entry.name!r} is not there any more: it cannot be called, and calls that wait are not answered."
    alike = [other.name for other in new if other.arguments == entry.arguments]
    if not alike:
        return text
    return (
        f"{text} Entry {alike[0]!r} takes the same: keep {entry.name!r} beside it until all callers know the new name."
    )


def _changed(before: DeclaredEntry, after: DeclaredEntry) -> Iterator[str]:
    entry = f"Entry {after.name!r}"
    was, now = ({column.name: column.type for column in each.arguments} for each in (before, after))
    for name in sorted({*was, *now}):
        if name not in now:
            yield (
                f"{entry}: argument {name!r} is not there any more: calls that give it are refused, and those that "
                "wait are made without it."
            )
        elif name not in was:
            must = "" if name in after.optional else " It has to be given from then on."
            yield f"{entry}: argument {name!r} is new, and null in calls that wait.{must}"
        elif was[name] != now[name]:
            yield (
                f"{entry}: argument {name!r} becomes {now[name]} from {was[name]}: in calls that wait it is null where "
                "it does not fit."
            )
        elif name in before.optional and name not in after.optional:
            yield f"{entry}: argument {name!r} is not optional any more; it is null in calls that wait without it."
    if before.returns != after.returns:
        yield (
            f"{entry} returns {after.returns or 'nothing'}, not {before.returns or 'nothing'} any more: answers that "
            "are kept stay as they are."
        )
