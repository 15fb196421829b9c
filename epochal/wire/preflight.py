"""Preflight checks of a new version, and trials."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from epochal.contracts.configuration import NOTHING_ACCEPTED, Acceptance, Parameters
from epochal.contracts.identity import EpochKey
from epochal.wire.bodies import Answer, Body, EpochNumber, Name, Open, Sha256
from epochal.wire.state import StateColumn
from epochal.wire.versions import GraphAnswer


class Preflight(Body):
    """A proposed version, and the snapshot from which it would continue; the default is the latest committed one.

    Omitted fields are taken from the latest version; ``configuration`` is merged over the current one.
    """

    application: Name
    epoch: EpochNumber | None = None
    savepoint: Name | None = None
    artifact: Sha256 | None = None
    parameters: Parameters | None = None
    configuration: dict[str, Any] = Field(default_factory=dict)
    acceptance: Acceptance = Field(
        default=NOTHING_ACCEPTED,
        description="Accepted differences; all others are listed as problems.",
    )
    trial: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="Number of epochs before the snapshot to run again in shadow, with a comparison of the results.",
    )


class TrialArguments(BaseModel):
    """Arguments of an operation of kind ``trial``, whose result is a :class:`PreflightAnswer`."""

    request: Preflight
    project: str = "default"
    branch: str
    epoch: int


class PartChange(Answer):
    """An operator, a source, a sink or an entry. ``before`` and ``after``: its type, the target of a sink, or the
    signature of an entry."""

    name: str
    verdict: Open[Literal["same", "added", "removed", "changed"]]
    before: str | None
    after: str | None


class MeaningChange(Answer):
    """A column, a key or an input of an operator whose meaning differs from the version that computed the state.
    ``before`` and ``after`` are its definitions."""

    column: str | None = Field(description="The value column; null: the keys or an input of the operator.")
    what: Open[Literal["function", "argument", "filter", "key", "input"]]
    before: str
    after: str
    accepted: bool = Field(default=False, description="Whether the request accepts it by name.")


class StateChange(Answer):
    """Effect of an upgrade on one state table. ``widened``: column -> old type, new type. ``problems``: reasons of a
    refusal with remedies; ``notes``: effects on existing rows."""

    table: str
    operator: str
    verdict: Open[Literal["same", "added", "dropped", "evolved", "changed", "refused"]] = Field(
        description="`changed`: the meaning of an argument, a filter, a key expression or an input differs from the "
        "version that computed the state, and has to be accepted by name. `refused`: another merge function or "
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
    """Comparison of a version with a snapshot. Without ``problems`` the version can continue from it."""

    operators: tuple[PartChange, ...]
    tables: tuple[StateChange, ...]
    sources: tuple[PartChange, ...]
    sinks: tuple[PartChange, ...]
    entries: tuple[PartChange, ...] = ()
    problems: tuple[str, ...]
    warnings: tuple[str, ...]


class TrialTable(Answer):
    """Comparison of a state table after a trial with the current state. ``rows``: number of equal rows. ``examples``:
    key, before, after."""

    table: str
    rows: int
    only_before: int
    only_after: int
    different: int
    examples: tuple[dict[str, Any], ...]


class TrialSink(Answer):
    """Comparison of a sink's rows from two versions with the same input, as multisets.

    ``committed``: number of committed rows; null if none were written. ``examples``: ``row``, ``version`` (``before``
    or ``after``), ``times``.
    """

    sink: str
    committed: int | None
    before: int
    after: int
    only_before: int
    only_after: int
    examples: tuple[dict[str, Any], ...] = ()


class TrialAnswer(Answer):
    """Result of running the last ``epochs`` epochs again in shadow. ``base``: epoch of the initial snapshot, null for
    the start; ``same``: no differences."""

    base: int | None
    epochs: int
    seconds: float
    same: bool
    tables: tuple[TrialTable, ...]
    sinks: tuple[TrialSink, ...]


class PreflightAnswer(Answer):
    """Result of a preflight. ``ok``: the version can continue from ``snapshot`` (null: no snapshot exists); ``graph``:
    graph of the version."""

    ok: bool
    application: str
    snapshot: EpochKey | None
    comparison: Comparison
    restarts: bool
    """The upgrade restarts the driver because Spark's resources change."""
    graph: GraphAnswer
    trial: TrialAnswer | None = None
