"""Moving an application to a branch that begins at an earlier snapshot. Runs inside the caller's write transaction."""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from epochal.contracts.identity import EpochKey
from epochal.engine.epoch import State
from epochal.errors import Conflict, SnapshotExpired
from epochal.faults import declare
from epochal.service.catalog.executions import BranchOrigin, add_branch
from epochal.service.catalog.models import Application, Branch, Epoch, Operation
from epochal.service.catalog.records import head_of
from epochal.service.catalog.succession import MOVE_ASIDE

MOVING = declare("rollback.moving", "nothing runs, the application is still on the branch that it leaves")
MOVED = declare("rollback.moved", "the application is on its new branch, in a transaction that is not committed")


def roll_back(session: Session, application: Application, operation: Operation) -> dict[str, Any]:
    """A new branch at the snapshot that the operation names; the operation's result.

    Raises ``Conflict`` while epochs are decided that a sink does not show yet: nobody could commit them any more;
    ``SnapshotExpired`` when the snapshot was collected since it was asked for.
    """
    MOVING.hit()
    order = operation.arguments
    target = EpochKey(order["branch"], order["epoch"])
    row = session.get_one(Epoch, (target.branch, target.epoch), populate_existing=True)
    if row.collected_at is not None:
        raise SnapshotExpired(f"Snapshot {target} was collected in the meantime. Roll back to a later epoch.")
    left = session.get_one(Branch, application.branch, populate_existing=True)
    check_committed(session, application, left)
    head = head_of(left)
    origin = BranchOrigin("rollback", target, order.get("message"))
    branch = add_branch(session, application, origin, operation.created_by)
    branch.origin = {
        MOVE_ASIDE: bool(order.get(MOVE_ASIDE)),
        "left": None if head is None else {"branch": head.branch, "epoch": head.epoch},
    }
    session.flush()
    MOVED.hit()
    return {
        "branch": branch.id,
        "parent": {"branch": target.branch, "epoch": target.epoch},
        "left": branch.origin["left"],
    }


def check_committed(session: Session, application: Application, branch: Branch) -> None:
    """Raises ``Conflict`` unless every decided epoch of the branch is committed in every sink."""
    prepared = select(func.count(), func.min(Epoch.epoch)).where(
        Epoch.branch == branch.id, Epoch.state == State.PREPARED.value
    )
    count, first = session.execute(prepared).one()
    if count:
        raise Conflict(
            f"Application {application.name!r} has {count} epochs (the first is {first}) that are decided, and that "
            "sinks do not show yet. Start it, so that they are committed, or end them (`epochal transaction`); then "
            "roll it back."
        )
