"""What a prepared transaction is called: whose it is can be read from its name, by Epochal and by administrators."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

from epochal.contracts.identity import TaskScope

PREFIX = "epochal"


@dataclass(frozen=True)
class TransactionName:
    """``epochal:{branch}:{sink}:{epoch}:{attempt}:{subtask}:{unique}``, at most 199 bytes."""

    branch: str
    sink: str
    epoch: int
    attempt: int
    subtask: int
    unique: str

    @classmethod
    def new(cls, task: TaskScope) -> TransactionName:
        epoch = task.epoch
        return cls(epoch.branch, task.owner, epoch.epoch, epoch.attempt, task.subtask, uuid4().hex[:12])

    @classmethod
    def parse(cls, gid: str) -> TransactionName | None:
        """``None`` when it is nobody's of ours."""
        parts = gid.split(":")
        if len(parts) != 7 or parts[0] != PREFIX or not all(part.isdigit() for part in parts[3:6]):
            return None
        return cls(parts[1], parts[2], int(parts[3]), int(parts[4]), int(parts[5]), parts[6])

    @property
    def gid(self) -> str:
        parts = (PREFIX, self.branch, self.sink, self.epoch, self.attempt, self.subtask, self.unique)
        return ":".join(map(str, parts))
