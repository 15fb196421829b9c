"""Contract tests of state backends for time-ordered tables and for rows that expire."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from epochal.contracts.conditions import BEGINNING, END
from epochal.snapshots.merge_policy import CELL_SIZES
from epochal.state.access import TableAccess
from epochal.state.key_codec import KeyCodec
from epochal.testing.state_world import (
    COUNTS,
    GROUPS,
    TIMED_TABLES,
    VISITS,
    WINDOWS,
    StateHarness,
    World,
    changes_of,
    check_view,
    counted,
    instant,
    open_bounds,
    unwindowed,
    visits,
    windows,
)


class ExpiryContract:
    """Mixin for the contract suite of state backends."""

    @pytest.fixture
    def timed(self, harness: StateHarness) -> World:
        return World(harness, 1, TIMED_TABLES)

    def test_a_time_ordered_table_is_its_own_index_of_what_is_due(self, timed: World) -> None:
        places = [(number, at) for number in range(30) for at in (-5, 0, 3, number, 200 + number)]
        timed.run(windows=windows(*sorted(set(places))))
        timed.run(windows=unwindowed((1, 0), (2, 3)) + windows((3, 3), count=2))
        transaction = timed.start()
        access = TableAccess(WINDOWS, transaction.view(WINDOWS.id), GROUPS)
        rows = list(timed.expected[WINDOWS.id].values())
        groups = dict(zip(_keys(rows), changes_of(WINDOWS, rows).column("_kg").to_pylist(), strict=True))
        for low, high in ((BEGINNING, 4), (BEGINNING, BEGINNING), (-5, 0), (3, 3), (3, 210), (5, END), (0, END + 1)):
            expected = sorted(
                (groups[key], KeyCodec(WINDOWS.key_schema).encode_one(key))
                for key in _keys(rows)
                if low <= (key[0] - instant(0)) // timedelta(microseconds=1) < high
            )
            for batch_rows in (1, 7, 40, 10_000):
                tables = list(access.due(range(GROUPS), low, high, batch_rows))
                assert all(0 < part.num_rows <= max(batch_rows, GROUPS) for part in tables)
                found = [
                    (row["_kg"], KeyCodec(WINDOWS.key_schema).encode_one([row[c.name] for c in WINDOWS.full_key]))
                    for part in tables
                    for row in part.to_pylist()
                ]
                assert sorted(found) == expected
                for group in range(GROUPS):
                    assert [row for row in found if row[0] == group] == [row for row in expected if row[0] == group]
        mine = [group for group in range(GROUPS) if group % 3]
        assert {row["_kg"] for part in access.due(mine, BEGINNING, END + 1) for row in part.to_pylist()} <= {*mine}
        assert access.earliest(range(GROUPS)) == -5
        assert access.earliest([]) is None
        changed = [row for row in rows if row["count"] == 2]
        there, values = access.get(changes_of(WINDOWS, changed + windows((3, 4))))
        assert there.tolist() == [True, False]
        assert values.column("count").to_pylist() == [2, None]
        transaction.discard()

    def test_the_key_group_is_that_of_the_key_whatever_the_time(self, timed: World) -> None:
        of_windows = changes_of(WINDOWS, windows(*((number, number % 5) for number in range(20))))
        assert of_windows.column("_kg").equals(changes_of(COUNTS, counted(*range(20))).column("_kg"))
        timed.parallelism = 3
        timed.run(windows=windows(*((number, number % 5) for number in range(20))), counts=counted(*range(20)))
        timed.check()
        timed.parallelism = 2
        timed.check()

    def test_rows_are_absent_from_the_first_snapshot_whose_clock_has_reached_them(self, timed: World) -> None:
        timed.run(windows=windows((1, 0), (1, 1), (2, 5), (2, 50)), visits=visits(1, b"a", b"b", touched=3))
        timed.check()
        timed.advance(event=11, processing=9)
        timed.run(visits=visits(1, b"b", touched=9) + visits(2, b"never", touched=None))
        assert len(timed.visible(WINDOWS)) == 2
        timed.check()
        transaction = timed.start()
        access = TableAccess(WINDOWS, transaction.view(WINDOWS.id), GROUPS)
        found, values = access.get(changes_of(WINDOWS, windows((1, 0), (1, 1), (2, 5))))
        assert found.tolist() == [False, False, True]
        assert values.column("count").to_pylist() == [None, None, 1]
        assert access.earliest(range(GROUPS)) == 5
        assert sum(part.num_rows for part in access.due(range(GROUPS), BEGINNING, 50)) == 1
        transaction.discard()
        timed.advance(processing=10)
        timed.run()
        assert len(timed.visible(VISITS)) == 2
        timed.check()
        timed.advance(event=END, processing=END)
        timed.run()
        assert (len(timed.visible(WINDOWS)), len(timed.visible(VISITS))) == (0, 1)
        timed.check()

    def test_a_row_that_is_written_again_lives_again(self, timed: World) -> None:
        timed.run(visits=visits(1, b"a", touched=0))
        timed.advance(processing=100)
        timed.run()
        timed.check()
        timed.run(visits=visits(1, b"a", touched=100))
        assert len(timed.visible(VISITS)) == 1
        timed.check()

    def test_an_older_snapshot_still_shows_what_has_expired_since(self, timed: World) -> None:
        """The older snapshot and a branch from it show the rows even if local stores have dropped them."""
        timed.run(windows=windows(*((number, number) for number in range(20))), visits=visits(1, b"a", touched=0))
        old = timed.fork(timed.branch)
        early = timed.start()
        for clock in (12, 25, 40):
            timed.advance(event=clock, processing=clock)
            timed.run(counts=counted(clock))
            timed.check()
        check_view(old, early, 0)
        early.discard()
        old.check()
        timed.check()
        fork = old.fork("fork")
        fork.advance(event=15)
        fork.run()
        assert 0 < len(fork.visible(WINDOWS)) < 20
        fork.check()
        timed.check()

    def test_ranges_with_a_limit_skip_expired_rows(self, timed: World) -> None:
        places = [bytes([place]) for place in range(60)]
        timed.run(visits=[visits(1, place, touched=place[0] % 9)[0] for place in places])
        timed.advance(processing=14)
        timed.run()
        owner = changes_of(VISITS, visits(1, b"", touched=0))
        group = int(owner.column("_kg")[0].as_py())
        expected = [place for place in places if place[0] % 9 > 7]
        transaction = timed.start()
        view = transaction.view(VISITS.id)
        for limit in (None, 0, 1, 2, 5, 6, 7, 100):
            keys, values = view.range(group, limit=limit)
            assert KeyCodec(VISITS.key_schema).decode(keys).column("place").to_pylist() == expected[:limit]
            assert values.num_rows == len(keys)
            many = view.ranges(np.full(3, group, np.int32), open_bounds(3), open_bounds(3), limit)
            assert many.owner.tolist() == sorted([0, 1, 2] * len(keys))
            assert many.keys.to_pylist() == keys.to_pylist() * 3
        keys, _ = view.range(group)
        assert view.get(group, keys[0].as_py()) == view.range(group)[1].to_pylist()[0]
        gone = KeyCodec(VISITS.key_schema).encode(owner.drop_columns(["_kg", "_op"]))[0]
        assert view.get(group, gone) is None
        transaction.discard()

    def test_bases_omit_exactly_the_rows_expired_at_their_snapshot(self, timed: World) -> None:
        timed.run(windows=windows(*((number, number) for number in range(30))), visits=visits(1, b"a", touched=5))
        timed.advance(event=20, processing=6)
        timed.run()
        timed.compact(CELL_SIZES)
        written = sum(base.file.rows for base in timed.chains[WINDOWS.id].bases)
        assert written == len(timed.visible(WINDOWS)) == 19
        for forget in (timed.harness.new_worker, timed.harness.new_machine):
            forget()
            timed.check()
        timed.advance(event=30)
        timed.run()
        timed.check()
        timed.compact(CELL_SIZES)
        assert sum(base.file.rows for base in timed.chains[WINDOWS.id].bases) == 9


def _keys(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [tuple(row[column.name] for column in WINDOWS.full_key) for row in rows]
