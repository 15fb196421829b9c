"""Wrong ways to keep state in runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tests.mutants.mutant import change, mutant

HEAP = "tests/spark/contract/test_state_heap.py"
CONTRACT = "tests/spark/contract/test_state_backends.py"
BOTH = f"{HEAP} {CONTRACT}"


@mutant("runs: keys of one hash are taken for one key", CONTRACT)
def _equal_hashes_are_equal_keys() -> None:
    from epochal.backends.runs.run import Run

    def wrong(_: Any) -> Any:
        def find(self: Run, keys: Any, hashes: Any) -> Any:
            if not len(self):
                return np.full(len(keys), -1, np.int64)
            places = np.minimum(np.searchsorted(self.hashes, hashes), len(self) - 1)
            rows = places if self.at is None else self.at[places].astype(np.int64)
            return np.where(self.hashes[places] == hashes, rows, -1)

        return find

    change(Run, "find", wrong)


@mutant("runs: of what is merged the oldest stays", BOTH)
def _the_oldest_stays() -> None:
    from epochal.backends.runs import lists

    def wrong(merged: Any) -> Any:
        return lambda runs, gone, in_order: merged(runs[::-1], None if gone is None else gone[::-1], in_order)

    change(lists, "merged", wrong)


@mutant("runs: a merge forgets what was deleted while older runs have it", BOTH)
def _deleted_keys_come_back() -> None:
    from epochal.backends.runs import lists

    def wrong(merged: Any) -> Any:
        def forgetful(runs: Any, gone: Any, in_order: bool) -> Any:
            return merged(runs, [np.zeros(len(run), bool) for run in runs] if gone is None else gone, in_order)

        return forgetful

    change(lists, "merged", wrong)


@mutant("runs: a rescale forgets what was deleted while older runs have it", HEAP)
def _deleted_keys_come_back_with_a_rescale() -> None:
    from epochal.backends.runs import rescaling

    def wrong(merged: Any) -> Any:
        return lambda runs, _, in_order: merged(runs, [np.zeros(len(run), bool) for run in runs], in_order)

    change(rescaling, "merged", wrong)


@mutant("runs: a rescale has the oldest runs of some subtasks above newer ones of theirs", HEAP)
def _a_rescale_in_the_wrong_order() -> None:
    from epochal.backends.runs import rescaling

    change(rescaling, "_side_by_side", lambda right: lambda *arguments: right(*arguments)[::-1])


@mutant("runs: a range shows what was deleted", CONTRACT)
def _ranges_with_what_was_deleted() -> None:
    from epochal.backends.runs.view import _Rows

    change(_Rows, "shown", lambda shown: lambda self, runs: shown(replace(self, deleted=self.deleted & False), runs))


@mutant("runs: a part of a range is taken for all of it", CONTRACT)
def _ranges_that_are_cut() -> None:
    from epochal.backends.runs.view import _Rows

    change(_Rows, "shown", lambda shown: lambda self, runs: shown(replace(self, last=self.last & False), runs))


@mutant("runs: branches share their lists", HEAP)
def _lists_of_any_branch() -> None:
    from epochal.backends import heap
    from epochal.backends.runs import shelf

    change(heap, "cache_identity", lambda _: lambda store, scope: scope.tables[0].id)
    change(shelf, "_list_name", lambda _: lambda mark: f"{mark.epoch:010}.json")


@mutant("runs: what a copy of a task wrote is taken for what the other did", HEAP)
def _runs_of_another_copy() -> None:
    from epochal.backends import heap
    from epochal.backends.runs import lists

    for module in (heap, lists):
        change(
            module, "name_of", lambda name_of: lambda *sources: name_of(*(path.rpartition("-")[0] for path in sources))
        )


@mutant("runs: files are believed unread", HEAP)
def _unchecked_files() -> None:
    from epochal.backends.runs import shelf

    change(shelf, "mapped", lambda mapped: lambda path: mapped(path, check=False))
