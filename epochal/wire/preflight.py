from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from epochal.contracts.configuration import NOTHING_ACCEPTED, Acceptance, Parameters
from epochal.contracts.identity import EpochKey
from epochal.wire.bodies import Answer, Body, EpochNumber, Name, Open, Sha256
from epochal.wire.state import StateColumn
from epochal.wire.versions import GraphAnswer


class Preflight(Body):
    """A version that might be, and the snapshot that it would go on from: by default the latest committed one.

    What is left out stays as in the latest version; ``configuration`` is merged over the present one.
    """

    application: Name
    epoch: EpochNumber | None = None
    savepoint: Name | None = None
    artifact: Sha256 | None = None
    parameters: Parameters | None = None
    configuration: dict[str, Any] = Field(default_factory=dict)
    acceptance: Acceptance = Field(
        default=NOTHING_ACCEPTED,
        description="Differences that the upgrade would accept by name; without, they are listed as problems.",
    )
    trial: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="Also run the last so many epochs up to the snapshot again, in shadow, and compare what comes out.",
    )


class TrialArguments(BaseModel):
    """Of an operation of kind ``trial``, whose result is a :class:`PreflightAnswer`: the snapshot that is meant."""

    request: Preflight
    project: str = "default"
    branch: str
    epoch: int


class PartChange(Answer):
    """An operator, a source, a sink or an entry. ``before`` and ``after``: its type, where a sink writes, or what an
    entry takes and returns."""

    name: str
    verdict: Open[Literal["same", "added", "removed", "changed"]]
    before: str | None
    after: str | None


class MeaningChange(Answer):
    """A column, the keys or an input of an operator that means something else than in the version that computed the
    state. ``before`` and ``after`` are the texts of the two versions."""

    column: str | None = Field(description="The value column; null: the keys or an input of the operator.")
    what: Open[Literal["function", "argument", "filter", "key", "input"]]
    before: str
    after: str
    accepted: bool = Field(default=False, description="Whether the request accepts it by name.")


class StateChange(Answer):
    """What becomes of one state table. ``widened``: column -> type before, type now. ``problems`` say why it cannot be,
    and what to do; ``notes``: what becomes of rows that are there, and is to be known."""

    table: str
    operator: str
    verdict: Open[Literal["same", "added", "dropped", "evolved", "changed", "refused"]] = Field(
        description="`changed`: an argument, a filter, a key expression or an input means something else than in the "
        "version that computed the state, which has to be accepted by name. `refused`: another merge function or "
        "layout, with which the state cannot be continued."
    )
    added: tuple[StateColumn, ...] = ()
    widened: dict[str, tuple[str, str]] = Field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    changed: tuple[MeaningChange, ...] = ()
    partial: tuple[str, ...] = Field(
        default=(),
        description="Aggregate columns that are added to existing keys. They count rows from the first epoch of the "
        "upgrade on, beside columns that count all rows, and have to be accepted by name.",
    )
    code_changed: tuple[str, ...] = Field(
        default=(), description="Functions and classes whose code differs. This is never refused."
    )
    unknown: bool = Field(
        default=False,
        description="Whether the version that computed the state stored no definition, so that meanings cannot be "
        "compared.",
    )
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Comparison(Answer):
    """``problems`` say why the version cannot go on from the snapshot; none: it can. ``warnings`` are to be known."""

    operators: tuple[PartChange, ...]
    tables: tuple[StateChange, ...]
    sources: tuple[PartChange, ...]
    sinks: tuple[PartChange, ...]
    entries: tuple[PartChange, ...] = ()
    problems: tuple[str, ...]
    warnings: tuple[str, ...]


class TrialTable(Answer):
    """State after a trial against the state that is there: keys by what differs. ``rows``: those that are the same in
    both. ``examples``: key, before, after."""

    table: str
    rows: int
    only_before: int
    only_after: int
    different: int
    examples: tuple[dict[str, Any], ...]


class TrialSink(Answer):
    """The rows that a sink would get of two versions, from the same input: how often one has a row, less the other.

    ``committed``: how many it really got; null where nothing was written to it. ``examples``: ``row``, ``version``
    (``before`` or ``after``), ``times``.
    """

    sink: str
    committed: int | None
    before: int
    after: int
    only_before: int
    only_after: int
    examples: tuple[dict[str, Any], ...] = ()


class TrialAnswer(Answer):
    """The last ``epochs`` epochs run again with another version, in shadow. ``base``: the epoch whose snapshot it began
    from, null for the beginning; ``same``: no difference."""

    base: int | None
    epochs: int
    seconds: float
    same: bool
    tables: tuple[TrialTable, ...]
    sinks: tuple[TrialSink, ...]


class PreflightAnswer(Answer):
    """``ok``: the version can go on from ``snapshot`` (null: there is none yet). ``graph`` is what would run."""

    ok: bool
    application: str
    snapshot: EpochKey | None
    comparison: Comparison
    restarts: bool
    """Whether it would take effect by a restart, because Spark's resources change, not at an epoch boundary."""
    graph: GraphAnswer
    trial: TrialAnswer | None = None
