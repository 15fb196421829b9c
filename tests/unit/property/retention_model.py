"""The snapshots that must be readable, in plain Python: their contents, and the order of their commits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.state.table import StateTable
from tests.unit.property.counting import COUNTS, Rows


@dataclass
class App:
    """An application: its branches in the order of creation, and the holds on its snapshots.

    ``table`` and ``parallelism`` belong to the version of the head; ``versions``: number of versions so far.
    """

    name: str
    retained: int
    branches: list[str]
    table: StateTable = COUNTS
    parallelism: int = 2
    versions: int = 1
    deleted: bool = False
    savepoints: dict[str, EpochKey] = field(default_factory=dict)
    pins: set[EpochKey] = field(default_factory=set)

    @property
    def branch(self) -> str:
        return self.branches[-1]


@dataclass
class Model:
    """Model of one control plane. ``collected`` returns the snapshots that it has collected; it may collect late."""

    collected: Callable[[], set[EpochKey]]
    apps: list[App] = field(default_factory=list)
    expected: dict[EpochKey, Rows] = field(default_factory=dict)
    references: dict[EpochKey, ManifestReference] = field(default_factory=dict)
    parents: dict[str, EpochKey | None] = field(default_factory=dict)
    retains: dict[str, int] = field(default_factory=dict)
    """For each branch: the retention of the application that is, or was, on it."""
    committed: list[EpochKey] = field(default_factory=list)
    """In commit order."""
    may_be_collected: set[EpochKey] = field(default_factory=set)
    """Not retained at the time of a collection. A fork with a longer retention may bring them into range again."""

    @property
    def living(self) -> list[App]:
        return [app for app in self.apps if not app.deleted]

    def add(self, app: App, parent: EpochKey | None) -> App:
        self.apps.append(app)
        self.parents[app.branch], self.retains[app.branch] = parent, app.retained
        return app

    def branch_off(self, app: App, branch: str, parent: EpochKey) -> None:
        app.branches.append(branch)
        self.parents[branch], self.retains[branch] = parent, app.retained

    def collecting(self) -> None:
        """Marks the snapshots that need not be retained as possibly collected."""
        self.may_be_collected |= self.references.keys() - self.required()

    def lineage(self, branch: str) -> list[EpochKey]:
        """Committed snapshots of a branch and of its ancestors, oldest first."""
        parent = self.parents[branch]
        known = parent is not None and parent.branch in self.parents  # otherwise beyond the imported epochs
        before = [key for key in self.lineage(parent.branch) if key.epoch <= parent.epoch] if known else []  # type: ignore[union-attr]
        return before + sorted(key for key in self.committed if key.branch == branch)

    def retained(self, app: App) -> set[EpochKey]:
        """By count along the lineage; on abandoned branches, the snapshots that are no older."""
        lineage = self.lineage(app.branch)
        kept = lineage[-app.retained :]
        since = self.committed.index(kept[0]) if len(kept) == app.retained else 0
        collected = self._collected()
        lineage_keys = set(lineage)
        others = [
            key
            for position, key in enumerate(self.committed)
            if key.branch in app.branches and key not in lineage_keys and position >= since
        ]
        return {*kept, *others} - collected

    def required(self) -> set[EpochKey]:
        """All snapshots that must be readable."""
        found: set[EpochKey] = set()
        collected = self._collected()
        for app in self.living:
            found |= self.retained(app) | set(app.savepoints.values()) | app.pins
            branch: str | None = app.branch
            while branch in self.parents:
                parent = self.parents[branch]
                found |= {parent} - collected if parent in self.references else set()
                branch = parent.branch if parent else None
            found |= {key for key in self.references if key.branch in app.branches and key not in self.committed}
        return found

    def _collected(self) -> set[EpochKey]:
        """Snapshots that may be collected and are."""
        return self.may_be_collected & self.collected() if self.may_be_collected else set()
