"""Wrong ways to store state in runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tests.mutants.mutant import change, mutant

HEAP = "tests/spark/contract/test_state_heap.py"
CONTRACT = "tests/spark/contract/test_state_backends.py"
BOTH = f"{HEAP} {CONTRACT}"


@mutant("runs: keys with equal hashes count as one key", CONTRACT)
def _equal_hashes_are_equal_keys() -> None:
    from epochal.backends.runs.segment import Segment

    def wrong(_: Any) -> Any:
        def find(self: Segment, keys: Any, hashes: Any) -> Any:
            if not len(self):
                return np.full(len(keys), -1, np.int64)
            places = np.minimum(np.searchsorted(self.hashes, hashes), len(self) - 1)
            rows = places if self.at is None else self.at[places].astype(np.int64)
            return np.where(self.hashes[places] == hashes, rows, -1)

        return find

    change(Segment, "find", wrong)


@mutant("runs: a merge keeps the oldest row of a key", BOTH)
def _oldest_row_wins() -> None:
    from epochal.backends.runs import lists

    def wrong(merged: Any) -> Any:
        return lambda runs, gone, in_order: merged(runs[::-1], None if gone is None else gone[::-1], in_order)

    change(lists, "merged", wrong)


@mutant("runs: a merge drops deletions of keys that older runs hold", BOTH)
def _merge_drops_deletions() -> None:
    from epochal.backends.runs import lists

    def wrong(merged: Any) -> Any:
        def forgetful(runs: Any, gone: Any, in_order: bool) -> Any:
            return merged(runs, [np.zeros(len(run), bool) for run in runs] if gone is None else gone, in_order)

        return forgetful

    change(lists, "merged", wrong)


@mutant("runs: a rescale drops deletions of keys that older runs hold", HEAP)
def _rescale_drops_deletions() -> None:
    from epochal.backends.runs import lists

    def wrong(merged: Any) -> Any:
        return lambda runs, _, in_order: merged(runs, [np.zeros(len(run), bool) for run in runs], in_order)

    change(lists, "merged", wrong)


@mutant("runs: a rescale uses the runs of some of the previous subtasks", HEAP)
def _rescale_of_a_part() -> None:
    from epochal.backends.runs import lists

    def wrong(_: Any) -> Any:
        return lambda others, groups: [shelf for theirs, shelf in others if not set(groups).isdisjoint(theirs)]

    change(lists, "_covering", wrong)


@mutant("runs: a rescale orders a subtask's older runs above its newer ones", HEAP)
def _wrong_order_after_a_rescale() -> None:
    from epochal.backends.runs import lists

    change(lists, "_side_by_side", lambda right: lambda *arguments: right(*arguments)[::-1])


@mutant("runs: a merge leaves out a part of the key groups", BOTH)
def _parts_left_out() -> None:
    from epochal.backends.runs import lists

    change(lists, "parts_of", lambda parts_of: lambda groups, nbytes: parts_of(groups, nbytes)[1:] or (groups,))


@mutant("runs: a merge keeps a segment whole that has rows of other parts, too", BOTH)
def _undivided_segments() -> None:
    from epochal.backends.runs.segment import Segment

    change(Segment, "of_groups", lambda _: lambda self, groups: self)


@mutant("runs: a range read returns deleted rows", CONTRACT)
def _ranges_with_deleted_rows() -> None:
    from epochal.backends.runs.view import _Rows

    change(_Rows, "shown", lambda shown: lambda self, runs: shown(replace(self, deleted=self.deleted & False), runs))


@mutant("runs: a part of a range counts as the whole range", CONTRACT)
def _incomplete_ranges() -> None:
    from epochal.backends.runs.view import _Rows

    change(_Rows, "shown", lambda shown: lambda self, runs: shown(replace(self, last=self.last & False), runs))


@mutant("runs: branches share their lists of runs", HEAP)
def _shared_lists() -> None:
    from epochal.backends import heap
    from epochal.backends.runs import run_store

    change(heap, "cache_identity", lambda _: lambda store, scope: scope.tables[0].id)
    change(run_store, "_list_name", lambda _: lambda mark: f"{mark.epoch:010}.json")


@mutant("runs: files of one copy of a task count as those of another copy", HEAP)
def _runs_of_another_copy() -> None:
    from epochal.backends.runs import lists

    def wrong(name_of: Any) -> Any:
        return lambda *sources: name_of(*(path.rpartition("-")[0] or path for path in sources))

    change(lists, "name_of", wrong)


@mutant("runs: checksums of files are not verified", HEAP)
def _unchecked_files() -> None:
    from epochal.backends.runs import run_store

    change(run_store, "mapped", lambda mapped: lambda path: mapped(path, check=False))
