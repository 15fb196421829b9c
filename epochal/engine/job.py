"""What the engine runs an epoch with: the contracts of E2, and the participants of the commit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from epochal.contracts.backend import Backend, SinkBackend
from epochal.contracts.conditions import EpochConditions
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochScope
from epochal.contracts.source import Slice, Source
from epochal.contracts.state import StateBackend
from epochal.engine.answers import Answers
from epochal.operators.loops.work import LoopTail
from epochal.snapshots.chain import Chain
from epochal.snapshots.manifest import DeltaFile
from epochal.state.table import StateTable


@dataclass(frozen=True)
class EpochPlan:
    """E2's whole input: the epoch and its conditions, the slice of each source, the chain of each state table at the
    parent."""

    scope: EpochScope
    conditions: EpochConditions
    slices: Mapping[str, Slice]
    chains: Mapping[str, Chain]
    queries: bytes = b""
    """The standing queries, as ``conditions.queries`` names them; empty where there have never been any."""


class EpochRunner(ABC):
    """Runs E2 on some cluster. Pure: the same plan may be run again after a failure."""

    def activate(self) -> None:  # noqa: B027 most rely on nothing
        """The epochs from here on are this runner's, until another is activated: what it relies on in a session that
        they share is set now."""

    def declaring(self, participants: Participants) -> EpochRunner:
        """This runner with ``participants.tables`` in place of the declarations of the same state tables."""
        return self

    @abstractmethod
    def run(self, plan: EpochPlan, timeout_seconds: float) -> Answers:
        """Run the job and return what every subtask answered. Raises ``EpochTimeout``, ``EpochAborted``."""

    @abstractmethod
    def deltas(self, handle: Handle) -> tuple[DeltaFile, ...]:
        """The delta files that an operator's handle names."""


@dataclass(frozen=True)
class Participants:
    """All that takes part in an epoch: sources, operators' state backends, sinks' backends, tails of loops, by name.

    A loop's head is among the sources. Its tail takes rows as a sink does, and nothing of it is committed.
    """

    sources: Mapping[str, Source] = field(default_factory=dict)
    operators: Mapping[str, StateBackend] = field(default_factory=dict)
    sinks: Mapping[str, SinkBackend] = field(default_factory=dict)
    tables: tuple[StateTable, ...] = ()
    loops: Mapping[str, LoopTail] = field(default_factory=dict)

    @property
    def backends(self) -> list[Backend]:  # type: ignore[type-arg]
        """The backends of operators, sinks and loops alike: all speak start, pre-commit, commit, abort.

        No dictionary: an operator and a sink may have the same name.
        """
        return [*self.operators.values(), *self.sinks.values(), *self.loops.values()]
