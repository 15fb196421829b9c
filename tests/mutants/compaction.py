"""Wrong ways to merge and to read the runs of bases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.mutants.mutant import change, mutant

RESTORES = "tests/spark/contract/test_state_backends.py -k several_runs"
READER = "tests/unit/test_snapshots_expiry.py"
COMPACTION = "tests/spark/test_compaction.py"
POLICY = "tests/unit/property/test_merge_policy.py"
RESCALED = "tests/spark/contract/test_state_heap.py -k rescale"
LOOK_UPS = "tests/unit/property/test_run_look_ups.py"


@mutant("compaction: a merge omits deleted keys although an older run lies below", RESTORES)
def _deletes_lost() -> None:
    from epochal.snapshots import compaction

    def wrong(run_rows: Any) -> Any:
        return lambda store, table, chain, merge, changes: run_rows(store, table, chain, replace(merge, age=0), changes)

    change(compaction, "run_rows", wrong)


@mutant("compaction: readers take the oldest run that has a key", READER)
def _oldest_run_first() -> None:
    from epochal.snapshots.reader import TableSearch

    def wrong(self: Any) -> Any:
        deltas = [delta for link in reversed(self._chain.links) for delta in link.deltas]
        return [*deltas, *self._chain.bases]

    change(TableSearch, "files", lambda _: property(wrong))


@mutant("compaction: the heap restores runs oldest first", RESTORES)
def _heap_restores_in_reverse() -> None:
    from epochal.backends.heap import _CatchUp

    change(_CatchUp, "_bases", lambda bases: lambda self: bases(self)[::-1])


@mutant("compaction: LMDB restores runs newest first", RESTORES)
def _lmdb_restores_in_reverse() -> None:
    from epochal.backends.catch_up import Bases

    def wrong(of_group: Any) -> Any:
        return lambda self, group: iter([*of_group(self, group)][::-1])

    change(Bases, "of_group", wrong)


@mutant("compaction: runs of other columns are kept", COMPACTION)
def _other_columns_kept() -> None:
    from epochal.snapshots import compaction

    change(compaction, "columns_of", lambda _: lambda table: "")


@mutant("compaction: a history takes rows that had expired at the bases for live ones", READER)
def _history_without_the_clock_of_bases() -> None:
    from epochal.snapshots.key_walk import Bases

    change(Bases, "clock", lambda _: property(lambda self: None))


@mutant("compaction: a merge beside a rescale leaves out the changes of the other parallelism", RESCALED)
def _changes_of_one_parallelism() -> None:
    from epochal.snapshots.compaction import TableChanges

    def wrong(of_groups: Any) -> Any:
        def of_the_latest(self: Any, groups: range) -> Any:
            latest = {delta.parallelism for link in self.chain.links[-1:] for delta in link.deltas}
            links = tuple(
                replace(link, deltas=tuple(delta for delta in link.deltas if delta.parallelism in latest))
                for link in self.chain.links
            )
            return of_groups(replace(self, chain=replace(self.chain, links=links)), groups)

        return of_the_latest

    change(TableChanges, "of_groups", wrong)


@mutant("compaction: cells ignore the parallelism", POLICY)
def _cells_of_several_subtasks() -> None:
    from epochal.snapshots import merge_policy

    def wrong(pieces_of: Any) -> Any:
        return lambda groups, bytes, rows, parallelism, sizes: pieces_of(groups, bytes, rows, 1, sizes)

    change(merge_policy, "pieces_of", wrong)


@mutant("compaction: the filter of a run lacks one of its keys", LOOK_UPS)
def _filter_with_false_negatives() -> None:
    from epochal.snapshots.key_filter import KeyFilter

    change(KeyFilter, "of", lambda of: staticmethod(lambda keys: of(keys.some(slice(0, max(1, len(keys) - 1))))))


@mutant("compaction: a look-up ignores rows of a key at the end of the row group before", LOOK_UPS)
def _rows_of_earlier_row_group_lost() -> None:
    from bisect import bisect_left

    from epochal.snapshots.run_index import KeyGroupPart

    def wrong(self: Any, beginning: bytes) -> Any:
        first = bisect_left(self.first_keys, beginning)
        return self.row_groups[first : first + 2]

    change(KeyGroupPart, "with_keys", lambda _: wrong)
