"""What a preflight answers: a version compared with the one before it and with a snapshot, and a trial."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from epochal.client.models import Answer
from epochal.contracts.identity import EpochKey


class PartChange(Answer):
    """An operator, a source or a sink in two versions; ``before`` and ``after``: its type, or where a sink writes."""

    name: str
    verdict: Literal["same", "added", "removed", "changed"]
    before: str | None = None
    after: str | None = None


class StateChange(Answer):
    """What becomes of one state table. ``widened``: column -> type before, type after."""

    table: str
    verdict: Literal["same", "added", "dropped", "evolved"]
    added: tuple[dict[str, Any], ...] = ()
    widened: dict[str, tuple[str, str]] = Field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class Comparison(Answer):
    """A version compared with the one before it and with a snapshot. ``problems`` stand against it."""

    operators: tuple[PartChange, ...] = ()
    tables: tuple[StateChange, ...] = ()
    sources: tuple[PartChange, ...] = ()
    sinks: tuple[PartChange, ...] = ()
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class TrialTable(Answer):
    """State after a trial against the state that is there: keys by what differs, and some of them."""

    table: str
    rows: int
    only_before: int
    only_after: int
    different: int
    examples: tuple[dict[str, Any], ...] = ()


class TrialSink(Answer):
    """The rows that a sink would get of both versions, as multisets, and some of those that only one has.

    ``committed``: how many it really got; null where nothing was written to it.
    """

    sink: str
    committed: int | None
    before: int
    after: int
    only_before: int
    only_after: int
    examples: tuple[dict[str, Any], ...] = ()


class Trial(Answer):
    """The last ``epochs`` epochs run again with another version, in shadow, from the snapshot before them."""

    base: int | None
    epochs: int
    seconds: float
    same: bool
    tables: tuple[TrialTable, ...] = ()
    sinks: tuple[TrialSink, ...] = ()


class Preflight(Answer):
    """What an upgrade would do. ``ok``: it would not be refused."""

    ok: bool
    application: str
    snapshot: EpochKey | None = None
    comparison: Comparison
    restarts: bool = False
    graph: Any = None
    trial: Trial | None = None
