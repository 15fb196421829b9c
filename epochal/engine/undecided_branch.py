"""Epochs one after the other on a branch that nobody decides: for trials, and for the training of a session."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.conditions import EpochConditions
from epochal.contracts.identity import EpochKey, EpochScope
from epochal.contracts.source import Slice
from epochal.engine.answers import Collected, collect
from epochal.engine.job import EpochPlan
from epochal.engine.manifests import manifest_of
from epochal.engine.program import Program
from epochal.snapshots.chain import Chain
from epochal.snapshots.lineage import extend, read_chains
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.store import SnapshotStore


class UndecidedBranch:
    """``parent``: the manifest of its last epoch, which is not written; before the first one that of ``base``.
    ``chains``: by state table its files."""

    def __init__(self, program: Program, name: str, store: SnapshotStore, base: ManifestReference | None) -> None:
        self._program, self._name = program, name
        self._head = base
        self.parent: Manifest | None = None if base is None else store.read_manifest(base)
        self.chains: dict[str, Chain] = read_chains(store, base, [table.id for table in program.participants.tables])

    def run(
        self, epoch: int, slices: Mapping[str, Slice], conditions: EpochConditions, queries: bytes = b""
    ) -> Collected:
        """One epoch over these slices; what its tasks pre-committed. Raises what aborts an epoch."""
        program, orders = self._program, self._program.orders
        key = EpochKey(self._name, epoch)
        scope = EpochScope(orders.application, key, 1, None if self._head is None else self._head.key)
        plan = EpochPlan(scope, conditions, slices, dict(self.chains), queries)
        collected = collect(
            program.runner.run(plan, orders.configuration.epoch_timeout_seconds),
            operators=list(program.participants.operators),
            sinks=list(program.participants.sinks),
            parallelism=orders.configuration.parallelism,
            rejecting=program.plan.time.failing,
            loops=list(program.participants.loops),
        )
        self.parent = manifest_of(program, self._head, plan, datetime.now(UTC), collected, before=self.parent)
        self.chains = {table: extend(chain, table, self.parent) for table, chain in self.chains.items()}
        self._head = ManifestReference(branch=key.branch, epoch=key.epoch, path=f"{key.branch}/unwritten", sha256="")
        return collected
