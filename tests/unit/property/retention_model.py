"""What has to be readable, in plain Python: of each snapshot what must be read there, and when it was committed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.state.table import StateTable
from tests.unit.property.counting import COUNTS, Rows


@dataclass
class App:
    """The model's side of an application: branches in the order they began, and what holds its snapshots.

    ``table`` and ``parallelism`` are those of the version that made the head; ``versions``: how many there ever were.
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
    """Of one control plane. ``collected`` asks it which snapshots it has collected: it may, but need not have."""

    collected: Callable[[], set[EpochKey]]
    apps: list[App] = field(default_factory=list)
    expected: dict[EpochKey, Rows] = field(default_factory=dict)
    references: dict[EpochKey, ManifestReference] = field(default_factory=dict)
    parents: dict[str, EpochKey | None] = field(default_factory=dict)
    retains: dict[str, int] = field(default_factory=dict)
    """By branch: what the application is configured to retain that is, or was, on it."""
    committed: list[EpochKey] = field(default_factory=list)
    """In the order of their commits."""
    may_be_gone: set[EpochKey] = field(default_factory=set)
    """Not to be kept when something was collected. Later they may be in reach again, by a fork that keeps more."""

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
        """From now on what is not to be kept may be gone."""
        self.may_be_gone |= self.references.keys() - self.kept()

    def lineage(self, branch: str) -> list[EpochKey]:
        """The committed snapshots of a branch and of what it stands on, oldest first."""
        parent = self.parents[branch]
        known = parent is not None and parent.branch in self.parents  # else beyond what an import brought
        before = [key for key in self.lineage(parent.branch) if key.epoch <= parent.epoch] if known else []  # type: ignore[union-attr]
        return before + sorted(key for key in self.committed if key.branch == branch)

    def retained(self, app: App) -> set[EpochKey]:
        """By count, along the lineage; of branches that were left, what is as young as that."""
        lineage = self.lineage(app.branch)
        kept = lineage[-app.retained :]
        since = self.committed.index(kept[0]) if len(kept) == app.retained else 0
        gone = self._gone()
        lineage_keys = set(lineage)
        others = [
            key
            for position, key in enumerate(self.committed)
            if key.branch in app.branches and key not in lineage_keys and position >= since
        ]
        return {*kept, *others} - gone

    def kept(self) -> set[EpochKey]:
        """All that must be readable."""
        found: set[EpochKey] = set()
        gone = self._gone()
        for app in self.living:
            found |= self.retained(app) | set(app.savepoints.values()) | app.pins
            branch: str | None = app.branch
            while branch in self.parents:
                parent = self.parents[branch]
                found |= {parent} - gone if parent in self.references else set()
                branch = parent.branch if parent else None
            found |= {key for key in self.references if key.branch in app.branches and key not in self.committed}
        return found

    def _gone(self) -> set[EpochKey]:
        """What may have been collected, and was."""
        return self.may_be_gone & self.collected() if self.may_be_gone else set()
