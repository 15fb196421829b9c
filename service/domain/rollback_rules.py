"""Effect of a rollback on the epochs that it leaves behind, by kind of sink. The backends' ``succeed`` implements
it."""

from __future__ import annotations

from epochal.wire.rollback import SinkRule

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
            "for the same input again. To remove the rows, restore the table to an earlier version with its own tools."
        )
    return _EXPLANATIONS[rule]


def refusal_to_move_aside(sink: str, kind: str) -> str | None:
    """Message for a sink that cannot move epochs aside as a request demands; ``None`` for the others."""
    if kind not in TABLES:
        return None
    return (
        f"Sink {sink!r} ({kind}) cannot move epochs aside: rows stay in the table. Roll back without move_aside, or "
        "restore the table to an earlier version with its own tools."
    )
