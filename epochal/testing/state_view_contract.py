"""What every state backend shows its tasks, as tests. See :mod:`epochal.testing.contract`."""

from __future__ import annotations

import pyarrow as pa

from epochal.state.access import TableAccess
from epochal.state.codec import KeyCodec
from epochal.testing.state_world import (
    COUNTS,
    GROUPS,
    SEEN,
    World,
    changes_of,
    check_view,
    counted,
    encoded_groups,
    seen,
    uncounted,
    unseen,
)


class ViewContract:
    """What a task sees of the snapshot that its epoch builds on."""

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

    def test_a_task_that_never_ended_keeps_its_view_and_disturbs_nobody(self, world: World) -> None:
        world.run(counts=counted(1, 2, 3))
        before = world.fork(world.branch)
        abandoned = world.start(0)
        for number in range(3):
            world.run(counts=counted(1, 2, 3, count=number + 5))
        world.check()
        check_view(before, abandoned, 0)

    def test_several_epochs_are_caught_up_at_once(self, world: World) -> None:
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
        world.run(seen=seen(1, b"a", b"abc", b"b"))
        group = int(encoded_groups(SEEN, seen(1, b"a"))[0])
        full = KeyCodec(SEEN.key_schema).encode(changes_of(SEEN, seen(1, b"a", b"abc", b"b")))
        transaction = world.start(group % world.parallelism)
        view = transaction.view(SEEN.id)
        for cut in range(max(map(len, full)) + 1):
            prefix = full[1][:cut]
            assert [key for key, _ in view.scan(group, prefix)] == sorted(k for k in full if k.startswith(prefix))
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
