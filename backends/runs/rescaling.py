"""Runs of the subtasks of another parallelism, as those of one subtask of this: what it begins with after a rescale.

Each key group is one subtask's, so the lists of several say nothing of the same key. They are put side by side, the
oldest runs beside the oldest. Nothing is sorted anew, or read from the store.
"""

from __future__ import annotations

from collections.abc import Sequence

from epochal.backends.runs.lists import Expiry, Lists, Runs
from epochal.backends.runs.merging import merged
from epochal.backends.runs.run import Run
from epochal.backends.runs.shelf import Shelf
from epochal.contracts.identity import EpochKey


def rescaled(
    lists: Lists, groups: range, marks: Sequence[EpochKey | None], least: int, expiry: Expiry
) -> tuple[Runs, int] | None:
    """The runs of ``groups`` at the latest of ``marks`` for which those who had them kept theirs in files, and its
    place among them, which is ``least`` or later; ``None`` where there is none."""
    covering = [having for others in lists.shelf.others() if (having := _covering(others, groups))]
    for place in range(len(marks) - 1, least - 1, -1):
        mark = marks[place]
        for shelves in covering:
            if mark is not None and (found := _at(shelves, mark)) is not None:
                return _side_by_side(lists, groups, found, expiry), place
    return None


def _covering(others: Sequence[tuple[range, Shelf]], groups: range) -> list[Shelf]:
    """Those of one parallelism that had some of these key groups; none unless they had all of them."""
    asked_for = set(groups)
    having = [(theirs, shelf) for theirs, shelf in others if not asked_for.isdisjoint(theirs)]
    return [shelf for _, shelf in having] if asked_for <= {group for theirs, _ in having for group in theirs} else []


def _at(shelves: Sequence[Shelf], mark: EpochKey) -> list[list[Run]] | None:
    found = []
    for shelf in shelves:
        if (runs := shelf.at(mark)) is None:
            return None
        found.append(runs)
    return found


def _side_by_side(lists: Lists, groups: range, others: Sequence[Sequence[Run]], expiry: Expiry) -> Runs:
    runs = []
    for age in range(max(map(len, others))):
        alike = [theirs[-1 - age] for theirs in others if age < len(theirs)]
        source = "|".join(["of other key groups", "" if age else expiry.name, *(str(run.name) for run in alike)])
        mine = [run.of_groups(groups) for run in alike]
        gone = None if age else [expiry.gone(run) for run in mine]
        one = mine[0] if len(mine) == 1 else merged(mine, gone, lists.in_order)
        if len(one):
            runs.append(lists.add(one, source))
    return tuple(reversed(runs))
