"""Effect of a rollback on the epochs that it leaves behind, by kind of sink. The backends' ``succeed`` implements
it."""

from __future__ import annotations

from epochal.contracts.catalog import RestorePoint
from epochal.wire.rollback import SinkPlan, SinkRule

FOLDERS = ("files", "hdfs")
TABLES = ("delta", "iceberg")
MARKERS = ("kafka", "dbms", "postgresql-two-phase", *TABLES)

_EXPLANATIONS: dict[SinkRule, str] = {
    "stays": "Its folders of these epochs stay visible to readers, beside the new ones; use move_aside to hide them.",
    "moved-aside": "Its folders of these epochs are moved to _aside, which readers ignore, before the first new epoch.",
    "new-marker": "Its rows of these epochs stay: they cannot be removed. The new branch has its own marker, and "
    "writes the results for the same input again.",
    "unknown": "The effect on its rows depends on this kind of sink; see its documentation.",
}

_RESTORE = {
    "delta": "version {version} (`RESTORE TABLE delta.`{table}` TO VERSION AS OF {version}`)",
    "iceberg": "snapshot {version} (`CALL catalog.system.rollback_to_snapshot('{table}', {version})`)",
}
_SEARCH = {
    "delta": "`DESCRIBE HISTORY` shows the versions: the information about a commit has the branch and the epochs "
    "(`epochal`).",
    "iceberg": "The metadata table `snapshots` shows them: a summary has the branch and the epochs (`epochal.branch`, "
    "`epochal.epochs`).",
}


def rule_of(kind: str, move_aside: bool) -> SinkRule:
    if kind in FOLDERS:
        return "moved-aside" if move_aside else "stays"
    return "new-marker" if kind in MARKERS else "unknown"


def explanation(kind: str, rule: SinkRule) -> str:
    if kind == "dbms" and rule == "new-marker":
        return (
            "Its rows of these epochs stay: they cannot be removed. With keys, the new branch overwrites a row "
            "when its key occurs again; without keys, rows are repeated. It has a separate row in "
            "_epochal_fence."
        )
    if kind in TABLES:
        return (
            "Its rows of these epochs stay in the table. The new branch has its own marker, and appends the results "
            "for the same input again."
        )
    return _EXPLANATIONS[rule]


def restoring(plan: SinkPlan, point: RestorePoint, restarts: bool) -> SinkPlan:
    """The plan of a table with the version to which its user can restore it. ``restarts``: the application runs."""
    if point.version is None:
        if point.unknown:
            text = f"The version before these epochs could not be determined: {point.reason}. {_SEARCH[plan.kind]}"
        else:
            text = f"The table cannot be restored to a version before these epochs: {point.reason}."
        return plan.model_copy(update={"restore": text})
    table = plan.target.rpartition("/")[2] if plan.kind == "iceberg" else plan.target.partition(":")[2]
    order = "stop the application, roll it back, and restore" if restarts else "roll the application back, and restore"
    text = (
        f"To remove these rows: {order} the table to {_RESTORE[plan.kind].format(table=table, version=point.version)} "
        "before the application starts again. Later rows of other writers are removed, too."
    )
    return plan.model_copy(update={"restore_to": point.version, "restore": text})


def refusal_to_move_aside(sink: str, kind: str) -> str | None:
    """Message for a sink that cannot move epochs aside as a request demands; ``None`` for the others."""
    if kind not in TABLES:
        return None
    return (
        f"Sink {sink!r} ({kind}) cannot move epochs aside: rows stay in the table. Roll back without move_aside, or "
        "restore the table to an earlier version with its own tools."
    )
