"""Where the lines of a drawing run: one lane per branch, taken again when the branch above has ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from epochal.contracts.identity import EpochKey
from epochal.wire.lineage import LineageAnswer


@dataclass(frozen=True)
class Lanes:
    """``rows``: of each node's key, counted from the newest. ``lane``: of each branch, from the left."""

    rows: Mapping[EpochKey, int]
    lane: Mapping[str, int]

    @property
    def width(self) -> int:
        return max(self.lane.values(), default=-1) + 1


def lanes_of(lineage: LineageAnswer) -> Lanes:
    """The branch of the head is on the left. A branch holds its lane down to the snapshot that it stands on."""
    rows = {EpochKey(node.branch, node.epoch): row for row, node in enumerate(lineage.nodes)}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for key, row in rows.items():
        first.setdefault(key.branch, row)
        last[key.branch] = row
    for edge in lineage.edges:
        # A parent on another page is further down than all rows of this one.
        last[edge.target.branch] = max(last[edge.target.branch], rows.get(edge.source, len(rows)))
    head = lineage.head.branch if lineage.head is not None else None
    order = sorted(first, key=lambda branch: (branch != head, first[branch]))
    return Lanes(rows, _assigned([(branch, first[branch], last[branch]) for branch in order]))


def _assigned(spans: Sequence[tuple[str, int, int]]) -> Mapping[str, int]:
    taken: list[list[tuple[int, int]]] = []
    lane: dict[str, int] = {}
    for branch, first, last in spans:
        free = (number for number, used in enumerate(taken) if all(last < start or first > end for start, end in used))
        number = next(free, len(taken))
        if number == len(taken):
            taken.append([])
        taken[number].append((first, last))
        lane[branch] = number
    return lane
