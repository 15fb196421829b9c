"""What each kind of sink does with the epochs that a rollback leaves behind. The backends' ``succeed`` does it."""

from __future__ import annotations

from epochal.wire.rollback import SinkRule

FOLDERS = ("files", "hdfs")
MARKERS = ("kafka", "dbms", "postgresql-two-phase")

_EXPLANATIONS: dict[SinkRule, str] = {
    "stays": "Its folders of these epochs stay, and readers go on seeing them beside the new ones; ask for move_aside "
    "to hide them.",
    "moved-aside": "Its folders of these epochs are moved to _aside, where readers do not look, before the first new "
    "epoch.",
    "new-marker": "Its rows of these epochs stay: they cannot be taken back. The new branch gets a marker of its own, "
    "and writes once more what it makes of the same input.",
    "unknown": "What becomes of its rows is up to this kind of sink; see its documentation.",
}


def rule_of(kind: str, move_aside: bool) -> SinkRule:
    if kind in FOLDERS:
        return "moved-aside" if move_aside else "stays"
    return "new-marker" if kind in MARKERS else "unknown"


def explanation(kind: str, rule: SinkRule) -> str:
    if kind == "dbms" and rule == "new-marker":
        return (
            "Its rows of these epochs stay: they cannot be taken back. With keys, the new branch writes over a row "
            "when its key comes again; without, rows come once more. It gets a row of its own in _epochal_fence."
        )
    return _EXPLANATIONS[rule]
