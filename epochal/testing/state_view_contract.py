"""Contract tests for the state views that a backend provides to tasks. See :mod:`epochal.testing.contract`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from epochal.state.access import TableAccess
from epochal.state.key_codec import KeyCodec
from epochal.testing.state_world import (
    COUNTS,
    GROUPS,
    OWN,
    PARTS,
    RULES,
    SCOPED_TABLES,
    SEEN,
    SHARED,
    World,
    changes_of,
    check_view,
    counted,
    elements,
    encoded_groups,
    seen,
    uncounted,
    unseen,
)


class ViewContract:
    """Contract tests of a task's view of the parent snapshot."""

    def test_before_the_first_epoch_there_is_nothing(self, world: World) -> None:
        world.check()
        world.parallelism = 1
        transaction = world.start()
        access = TableAccess(COUNTS, transaction.view(COUNTS.id), GROUPS)
        found, values = access.get(changes_of(COUNTS, counted(1, 2)))
        assert not found.any()
        assert values.to_pylist() == [{"count": None, "last": None}] * 2
        found, values = access.get(changes_of(COUNTS, []))
        assert (len(found), values.num_rows) == (0, 0)
        transaction.discard()

    def test_each_epoch_sees_exactly_its_parents(self, world: World) -> None:
        for number in range(6):
            world.run(counts=counted(*range(number, 40, number + 1), count=number), seen=seen(number, b"a", b"b"))
            world.check()

    def test_a_subtask_reads_the_key_groups_that_each_scope_has_it_read(self, world: World) -> None:
        """One operator has tables of all scopes: a subtask reads its own key groups, all groups, or the first group.

        The result is the same on another worker or machine and after rescaling.
        """
        world = World(world.harness, 3, SCOPED_TABLES)
        every = [(group, group + 1) for group in range(GROUPS)]
        for number, parallelism in enumerate((3, 3, 2, 1, 5)):
            world.parallelism = parallelism
            changes = {
                COUNTS.id: counted(*range(number, 20), count=number),
                SHARED.id: elements(*every[number::2], element=f"{number}"),
                OWN.id: [*elements(*every[::3], element=f"{number}"), *elements((1, 90 + number))],
                PARTS.id: elements(*every[:5], element=f"{number}"),
                RULES.id: elements((0, number)) + elements((0, number - 1), element=None) * (number > 0),
            }
            world.publish(world.pre_commit(changes), changes)
            world.check()
            if number == 2:
                world.compact()
                world.harness.new_worker()
                world.check()
            if number == 3:
                world.harness.new_machine()
                world.check()

    def test_changes_are_invisible_until_published(self, world: World) -> None:
        world.run(counts=counted(*range(10)))
        world.pre_commit({COUNTS.id: counted(*range(5, 15), count=2)})
        world.check()
        world.harness.new_worker()
        world.check()

    def test_an_open_view_does_not_change(self, world: World) -> None:
        world.run(counts=counted(*range(20)), seen=seen(1, b"a"))
        before = world.fork(world.branch)
        early = [world.start(subtask) for subtask in range(world.parallelism)]
        world.run(counts=counted(*range(30), count=2), seen=unseen(1, b"a"))
        world.run(counts=uncounted(*range(10)))
        world.check()
        for subtask, transaction in enumerate(early):
            check_view(before, transaction, subtask)
            transaction.discard()
        world.check()

    def test_an_abandoned_task_keeps_its_view_and_does_not_affect_others(self, world: World) -> None:
        world.run(counts=counted(1, 2, 3))
        before = world.fork(world.branch)
        abandoned = world.start(0)
        for number in range(3):
            world.run(counts=counted(1, 2, 3, count=number + 5))
        world.check()
        check_view(before, abandoned, 0)

    def test_several_epochs_are_caught_up_in_one_step(self, world: World) -> None:
        world.run(counts=counted(*range(10)), seen=seen(3, b"a", b"b"))
        world.check()
        for number in range(4):
            world.run_elsewhere(counts=counted(number + 1, number + 20, count=number) + uncounted(number))
        world.run_elsewhere(seen=unseen(3, b"a"))
        world.check()

    def test_what_was_caught_up_under_an_open_view_does_not_show(self, world: World) -> None:
        world.run(counts=counted(*range(10)))
        before = world.fork(world.branch)
        early = world.start(1)
        world.run_elsewhere(counts=counted(*range(20), count=3))
        world.check()
        check_view(before, early, 1)
        early.discard()

    def test_an_old_epoch_is_seen_again_as_it_was(self, world: World) -> None:
        world.run(counts=counted(*range(20)), seen=seen(4, b"x", b"y"))
        old = world.fork(world.branch)
        world.run(counts=counted(*range(10, 30), count=2), seen=unseen(4, b"x"))
        world.check()
        old.check()
        world.check()

    def test_an_epoch_after_an_aborted_one_sees_nothing_of_it(self, world: World) -> None:
        world.run(counts=counted(*range(10)))
        world.harness.make().abort(world.scope(0).epoch, world.pre_commit({COUNTS.id: counted(*range(20), count=66)}))
        world.epoch += 1
        world.check()
        world.run(counts=counted(3, count=4))
        world.check()

    def test_branches_see_their_own(self, world: World) -> None:
        world.run(counts=counted(*range(10)), seen=seen(2, b"a"))
        fork = world.fork("fork")
        world.run(counts=counted(*range(5), count=2))
        fork.run(counts=uncounted(1, 2), seen=seen(2, b"b"))
        for branch in (world, fork, world):
            branch.run(counts=counted(7, count=branch.epoch))
            branch.check()
        world.harness.new_worker()
        fork.check()

    def test_deletes(self, world: World) -> None:
        world.run(counts=counted(*range(10)), seen=seen(1, b"a", b"b"))
        world.run(counts=uncounted(1, 2, 3, 77), seen=unseen(1, b"a"))
        world.check()
        world.run(counts=counted(2, 3, count=9) + uncounted(4))
        world.check()
        world.harness.new_worker()
        world.check()

    def test_null_keys_are_keys(self, world: World) -> None:
        world.run(counts=counted(1, 13, 17), seen=seen(13, b"a", b"b") + seen(17, b"c"))
        world.check()
        world.run(counts=counted(13, count=2) + uncounted(17), seen=unseen(13, b"a") + seen(17, b"d"))
        world.compact()
        for forget in (world.harness.new_worker, world.harness.new_machine):
            forget()
            world.check()
        world.parallelism = 1
        transaction = world.start()
        access = TableAccess(SEEN, transaction.view(SEEN.id), GROUPS)
        entries = access.entries(changes_of(COUNTS, counted(13, 1, 17)))
        assert entries.owner.tolist() == [0, 2, 2]
        assert entries.rows.column("place").to_pylist() == [b"b", b"c", b"d"]
        transaction.discard()

    def test_null_values_are_values(self, world: World) -> None:
        world.run(counts=[{**counted(1)[0], "count": None, "last": None}], seen=seen(1, b"", times=None))
        world.check()

    def test_scans_give_one_keys_entries_in_the_order_of_the_sub_key(self, world: World) -> None:
        places = [b"", b"\0", b"\0\0", b"\1", b"a", b"a\0b", b"ab", b"\xff", b"\xff\xff"]
        world.run(seen=seen(1, *reversed(places)) + seen(11, b"a") + seen(2, b"other"))
        world.run(seen=unseen(1, b"\1", b"ab"))
        left = [place for place in places if place not in (b"\1", b"ab")]
        owners = changes_of(SEEN, [seen(number, b"")[0] for number in (2, 1, 99)])
        for subtask in range(world.parallelism):
            transaction = world.start(subtask)
            mine = owners.filter(pa.array(owners.column("_kg").to_numpy() % world.parallelism == subtask))
            entries = TableAccess(SEEN, transaction.view(SEEN.id), GROUPS).entries(mine)
            for position, word in enumerate(mine.column("word").to_pylist()):
                rows = entries.rows.filter(pa.array(entries.owner == position)).to_pylist()
                expected = {"w\x001": left, "w\x002": [b"other"], "w\x0099": []}[word]
                assert rows == [{"place": place, "number": -7, "times": 1} for place in expected]
            transaction.discard()

    def test_scans_take_any_prefix(self, world: World) -> None:
        places = [b"a", b"abc", b"b", b"\xff\xff"]
        world.run(seen=seen(1, *places))
        group = int(encoded_groups(SEEN, seen(1, b"a"))[0])
        full = KeyCodec(SEEN.key_schema).encode(changes_of(SEEN, seen(1, *places)))
        transaction = world.start(group % world.parallelism)
        view = transaction.view(SEEN.id)
        for cut in range(max(map(len, full)) + 1):
            for key in (full[1], full[3], b"\xff" * cut):
                keys, values = view.scan(group, key[:cut])
                assert keys.to_pylist() == sorted(k for k in full if k.startswith(key[:cut]))
                assert values.num_rows == len(keys)
        transaction.discard()

    def test_a_look_up_answers_in_the_order_of_its_keys(self, world: World) -> None:
        world.run(counts=[*counted(*range(0, 40, 2), count=5), {**counted(41)[0], "count": None, "last": None}])
        world.parallelism = 1
        rows = changes_of(COUNTS, counted(*range(43), *range(5)))
        keys = KeyCodec(COUNTS.key_schema).encode_array(rows)
        numbers = [*range(43), *range(5)]
        transaction = world.start()
        view = transaction.view(COUNTS.id)
        groups = rows.column("_kg").to_numpy()
        found, values = view.lookup(groups, keys)
        there = [(number < 40 and number % 2 == 0) or number == 41 for number in numbers]
        assert found.tolist() == there
        assert values.schema.equals(COUNTS.value_schema)
        expected = [
            {"count": 5, "last": f"é{number}"} if is_there and number != 41 else {"count": None, "last": None}
            for number, is_there in zip(numbers, there, strict=True)
        ]
        assert values.to_pylist() == expected
        part = keys.slice(30)
        found, values = view.lookup(groups[30:], part)
        assert (found.tolist(), values.to_pylist()) == (there[30:], expected[30:])
        for group, key, is_there, row in zip(groups.tolist(), keys.to_pylist(), there, expected, strict=True):
            assert view.get(group, key) == (row if is_there else None)
        transaction.discard()

    def test_ranges_give_what_lies_between_their_bounds(self, world: World) -> None:
        long = [b"l" * 470 + b"%d" % number + b"x" * (number % 3 * 60) for number in range(12)]
        world.run(seen=seen(1, b"a", b"ab", b"b", b"gone", *long) + seen(2, b"c") + seen(3, b"", b"\xff"))
        world.check()
        world.run(seen=unseen(1, b"gone", long[3]) + seen(1, b"new", long[0], times=2) + seen(4, b"late"))
        world.parallelism = 1
        rows = changes_of(SEEN, list(world.expected[SEEN.id].values()))
        stored: dict[int, list[tuple[bytes, int]]] = {}
        full = KeyCodec(SEEN.key_schema).encode(rows)
        for group, key, times in zip(
            rows.column("_kg").to_pylist(), full, rows.column("times").to_pylist(), strict=True
        ):
            stored.setdefault(group, []).append((key, times))
        bounds = [None, b"", b"\xff" * 600, *(key[:cut] for key in full for cut in (3, 12, 480, 5000))]
        bounds += [key + b"\0" for key in full]
        asked = [
            (group, low, high)
            for position, group in enumerate([*stored, 0, *reversed(stored)])
            for low in bounds[position % 3 :: 3]
            for high in bounds[position % 2 :: 5]
        ]
        groups = np.array([group for group, _, _ in asked], np.int32)
        low_bounds = pa.array([low for _, low, _ in asked], pa.binary())
        high_bounds = pa.array([high for _, _, high in asked], pa.binary())
        transaction = world.start()
        view = transaction.view(SEEN.id)
        for limit in (None, 0, 1, 2, 7):
            found = view.ranges(groups, low_bounds, high_bounds, limit)
            expected = [
                (position, *row)
                for position, (group, low, high) in enumerate(asked)
                for row in sorted(
                    row
                    for row in stored.get(group, [])
                    if (low is None or row[0] >= low) and (high is None or row[0] < high)
                )[:limit]
            ]
            times = found.values.column("times").to_pylist()
            assert list(zip(found.owner.tolist(), found.keys.to_pylist(), times, strict=True)) == expected
        nothing = view.ranges(groups[:0], low_bounds[:0], high_bounds[:0])
        assert (len(nothing.owner), len(nothing.keys), nothing.values.schema) == (0, 0, SEEN.value_schema)
        transaction.discard()

    def test_keys_of_any_length(self, world: World) -> None:
        long = [b"p" * length for length in (0, 400, 470, 480, 490, 500, 511, 512, 600, 5000)]
        twins = [b"q" * 600 + end for end in (b"", b"a", b"b", b"aa")]
        world.run(seen=seen(1, *long, *twins), counts=counted(1))
        world.check()
        owner = changes_of(SEEN, seen(1, b""))
        transaction = world.start(int(owner.column("_kg")[0].as_py()) % world.parallelism)
        entries = TableAccess(SEEN, transaction.view(SEEN.id), GROUPS).entries(owner)
        assert entries.rows.column("place").to_pylist() == sorted(long + twins)
        transaction.discard()
        world.run(seen=unseen(1, long[-1], twins[1]) + seen(1, twins[2], times=2))
        world.check()
