"""Statements of each epoch and each heartbeat, built once: building them took longer than executing them.

Parameters are named ``the_..`` by :func:`parameters`, because column names have another meaning in an UPDATE. All
statements take ``branch`` and ``attempt``, the writing attempt; further parameters are listed at each. If the
precondition of a statement does not hold, it matches no row and changes nothing.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    String,
    bindparam,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.types import TypeEngine

from epochal.engine.epoch import Event, State, advance
from epochal.service.catalog.models import Base
from epochal.service.catalog.types import DatabaseClock, UtcDateTime

COUNTED: Final = ("rows_in", "rows_out", "state_rows", "state_bytes")
"""Counts of committed epochs that are summed by their branch."""


def parameters(**values: Any) -> dict[str, Any]:
    return {f"the_{name}": value for name, value in values.items()}


def _the(name: str, type: type[TypeEngine[Any]]) -> Any:
    return bindparam(f"the_{name}", type_=type)


_tables = Base.metadata.tables
_branches, _epochs, _executions = _tables["branches"].c, _tables["epochs"].c, _tables["executions"].c
_operations, _directives = _tables["operations"].c, _tables["directives"].c
_all = tuple(_epochs)
_branch, _attempt, _epoch = _the("branch", String), _the("attempt", Integer), _the("epoch", BigInteger)
_parent_branch, _parent_epoch = _the("parent_branch", String), _the("parent_epoch", BigInteger)
_execution, _at = _the("execution", String), _the("at", UtcDateTime)

_of_branch = update(_tables["branches"]).where(_branches.id == _branch)
_of_owned_branch = _of_branch.where(_branches.attempt == _attempt, _branches.owned)
_of_execution = update(_tables["executions"]).where(_executions.id == _execution)
_of_epoch = update(_tables["epochs"]).where(_epochs.branch == _branch, _epochs.epoch == _epoch)


def _columns(*names: str) -> dict[str, Any]:
    return {name: bindparam(f"the_{name}", type_=_epochs[name].type) for name in names}


def _used() -> ColumnElement[int]:
    """The highest epoch number of any branch of ``application``; an index finds the highest of each branch."""
    latest = select(func.max(_epochs.epoch)).where(_epochs.branch == _branches.id).correlate(_tables["branches"])
    of_all = select(func.max(latest.scalar_subquery())).where(_branches.application == _the("application", String))
    return func.coalesce(of_all.scalar_subquery(), 0)


def _parent_is_committed() -> ColumnElement[bool]:
    """Return whether the parent is committed, if it is on the same branch. Parents on other branches were committed
    before."""
    parent = _tables["epochs"].alias("parent").c
    committed = exists().where(
        parent.branch == _branch, parent.epoch == _epochs.parent_epoch, parent.state == State.COMMITTED.value
    )
    return or_(_epochs.parent_epoch.is_(None), _epochs.parent_branch != _branch, committed)


def _calls_before() -> ColumnElement[int]:
    """Number of the last call that the parent took, for an epoch that takes none."""
    parent = _tables["epochs"].alias("before").c
    return (
        select(parent.calls_through)
        .where(parent.branch == _parent_branch, parent.epoch == _parent_epoch)
        .scalar_subquery()
    )


OWN = _of_owned_branch.values(attempt=_attempt).returning(
    _branches.application, _branches.head_branch, _branches.head_epoch, _branches.parent_epoch
)
"""Lock the branch if the attempt owns it."""

OPEN = (
    insert(_tables["epochs"])
    .from_select(
        ["branch", "epoch", "execution", "attempt", "state", "parent_branch", "parent_epoch", "started_at"],
        select(
            _branch,
            _epoch,
            _execution,
            _attempt,
            literal(advance(None, Event.OPEN).value, String),
            _parent_branch,
            _parent_epoch,
            _at,
        ).where(_epoch > _the("above", BigInteger), _epoch > _used()),
    )
    .returning(*_all)
)
"""``epoch``, ``parent_branch``, ``parent_epoch``, ``execution``, ``at``; ``application`` and ``above``, which the
number has to exceed."""

MOVE_HEAD = _of_owned_branch.where(
    _branches.head_branch.is_not_distinct_from(_parent_branch),
    _branches.head_epoch.is_not_distinct_from(_parent_epoch),
).values(head_branch=_branch, head_epoch=_epoch)
"""Move the head from ``parent_branch``, ``parent_epoch`` to ``epoch`` of the branch."""

CHANGE_VERSION = _of_execution.values(version=_the("version", Integer))
"""``execution``, ``version``."""

PREPARE = (
    _of_epoch.where(
        _epochs.attempt == _attempt,
        _epochs.state == State.STARTED.value,
        _epochs.parent_branch.is_not_distinct_from(_parent_branch),
        _epochs.parent_epoch.is_not_distinct_from(_parent_epoch),
    )
    .values(
        state=State.PREPARED.value,
        prepared_at=_at,
        version=select(_executions.version).where(_executions.id == _execution).scalar_subquery(),
        **_columns("manifest_path", "manifest_sha256", "changes", "opened_for", "watermarks", "next_due"),
        calls_through=func.coalesce(_the("calls_through", BigInteger), _calls_before()),
        **_columns(*COUNTED, "late_rows", "rejected_rows", "dropped_timers"),
    )
    .returning(*_all)
)
"""``epoch``, ``parent_branch``, ``parent_epoch``, ``execution``, ``at``; and the columns."""

COMMIT = (
    _of_epoch.where(_epochs.state == State.PREPARED.value, _epochs.attempt <= _attempt, _parent_is_committed())
    .values(state=State.COMMITTED.value, committed_at=_at)
    .returning(*_all)
)
"""``epoch``, ``at``."""

COUNT_COMMITTED = _of_branch.values(
    committed_epochs=_branches.committed_epochs + 1,
    **{name: _branches[name] + _the(name, BigInteger) for name in COUNTED},
)

ABORT = (
    _of_epoch.where(_epochs.state == State.STARTED.value, _epochs.attempt <= _attempt)
    .values(state=State.ABORTED.value, **_columns("failure"))
    .returning(*_all)
)
"""``epoch``, ``failure``."""

COUNT_ABORTED = _of_branch.values(aborted_epochs=_branches.aborted_epochs + 1)

TIME = _of_epoch.where(_epochs.attempt == _attempt).values(**_columns("durations"))
"""``epoch``, ``durations``. Only of epochs that the attempt has opened."""

HEARTBEAT = _of_execution.values(
    heartbeat_at=DatabaseClock(), status=bindparam("the_status", type_=_executions.status.type)
).returning(
    _executions.state,
    exists().where(_operations.execution == _execution, _operations.state == "running").label("has_operations"),
    exists().where(_directives.execution == _execution, _directives.completed_at.is_(None)).label("has_directives"),
)
"""``execution``, ``status``. Also returns whether directives or operations are pending, so that they are read only
then."""
