"""Contract tests for state backends. See :mod:`epochal.testing.contract`."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from epochal.contracts.identity import EpochKey, EpochScope
from epochal.errors import FileCorrupt, FileMissing, InvalidKey, SchemaError, SnapshotError, StorageFull
from epochal.faults import FaultPoint, injected
from epochal.snapshots import layout, task_files
from epochal.testing.expiry_contract import ExpiryContract
from epochal.testing.state_view_contract import ViewContract
from epochal.testing.state_world import (
    COUNTS,
    OWNER,
    SEEN,
    SMALL_CELLS,
    StateHarness,
    World,
    changes_of,
    counted,
    encoded_groups,
    seen,
    uncounted,
    unseen,
)


class StateBackendContract(ViewContract, ExpiryContract):
    """Contract tests of a state backend. Subclass it and override the fixture ``harness``."""

    @pytest.fixture
    def harness(self) -> StateHarness:
        raise NotImplementedError("override the fixture 'harness' with a StateHarness over an empty store")

    @pytest.fixture
    def files_of_their_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Tasks write all deltas to the store, as they do large ones."""
        monkeypatch.setattr(task_files, "TASK_BYTES", 0)

    @pytest.fixture
    def world(self, harness: StateHarness) -> World:
        return World(harness)

    def test_an_operator_without_state_tables_has_epoch_after_epoch(self, world: World) -> None:
        for _ in range(2):
            backend = world.copied()
            handle = backend.start(replace(world.scope(0), tables=(), chains={})).pre_commit()
            assert backend.deltas(handle) == ()
            world.run(counts=counted(1))

    # The delta.

    @pytest.mark.usefixtures("files_of_their_own")
    def test_a_delta_is_parquet_that_anyone_can_read(self, world: World, harness: StateHarness) -> None:
        world.run(counts=counted(*range(50)))
        null_subtasks = set((encoded_groups(COUNTS, counted(13, 17)) % world.parallelism).tolist())
        for handle in world.run(counts=counted(*range(40, 60), count=2) + uncounted(*range(20))):
            (delta,) = harness.make().deltas(handle)
            rows = pq.read_table(io.BytesIO(harness.store.read(delta.file.path)))
            assert rows.schema.names == ["_kg", "_op", "word", "day", "count", "last"]
            assert rows.num_rows == delta.file.rows == handle.rows
            assert delta.file.bytes == handle.bytes == harness.store.size(delta.file.path)
            assert set(rows.column("_kg").to_numpy() % 2) == {handle.subtask}
            order = list(zip(*(rows.column(name).to_pylist() for name in ("_kg", "word", "day")), strict=True))
            assert order == sorted(order, key=lambda row: [(value is not None, value) for value in row])
            assert any(word is None for _, word, _ in order) == (handle.subtask in null_subtasks)
            deleted = rows.filter(pc.equal(rows.column("_op"), "delete"))
            assert set(deleted.column("count").to_pylist()) == {None}
            about = json.loads(rows.schema.metadata[b"epochal"])
            assert (about["table"], about["branch"], about["epoch"], about["subtask"]) == (
                "counts",
                "main",
                2,
                handle.subtask,
            )

    def test_a_subtask_without_changes_has_a_handle_and_no_file(self, world: World, harness: StateHarness) -> None:
        for handle in world.run():
            assert (handle.owner, handle.rows, handle.bytes) == (OWNER, 0, 0)
            assert harness.make().deltas(handle) == ()
        assert harness.store.list("main") == []
        world.check()

    def test_changes_may_be_staged_in_parts(self, world: World) -> None:
        handles = []
        for subtask in range(world.parallelism):
            transaction = world.start(subtask)
            for number in range(10):
                world.stage(transaction, {COUNTS.id: counted(number), SEEN.id: seen(number, b"x")}, subtask)
            handles.append(transaction.pre_commit())
        world.publish(
            handles, {COUNTS.id: counted(*range(10)), SEEN.id: [row for n in range(10) for row in seen(n, b"x")]}
        )
        world.check()

    def test_two_changes_of_one_key_are_refused(self, world: World, harness: StateHarness) -> None:
        for again in (counted(1, count=2), uncounted(1)):
            with pytest.raises(InvalidKey, match="'counts'"):
                world.pre_commit({COUNTS.id: counted(0, 1) + again})
        assert _files(world) == []

    def test_a_null_in_a_sub_key_and_a_missing_column_are_refused(self, world: World) -> None:
        transaction = world.start()
        entry = changes_of(SEEN, seen(1, b"a"))
        place = entry.schema.get_field_index("place")
        transaction.stage(SEEN.id, entry.set_column(place, "place", pa.array([None], pa.binary())))
        with pytest.raises(InvalidKey, match="'place'"):
            transaction.pre_commit()
        transaction = world.start()
        changes = changes_of(COUNTS, counted(1))
        with pytest.raises(SchemaError, match=r"'counts'.*last"):
            transaction.stage(COUNTS.id, changes.drop_columns(["last"]))
        transaction.discard()

    # The protocol.

    @pytest.mark.usefixtures("files_of_their_own")
    def test_attempts_of_one_subtask_may_run_concurrently(self, world: World, harness: StateHarness) -> None:
        world.run(counts=counted(*range(10)))
        changes = {COUNTS.id: counted(*range(5, 15), count=2), SEEN.id: seen(1, b"a")}
        first, second = world.start(1), world.start(1)
        world.stage(first, changes, 1)
        world.stage(second, changes, 1)
        winner, loser = second.pre_commit(), first.pre_commit()
        backend = harness.make()
        assert [delta.file.sha256 for delta in backend.deltas(winner)] == [
            delta.file.sha256 for delta in backend.deltas(loser)
        ]
        (other,) = [handle for handle in world.pre_commit(changes) if handle.subtask == 0]
        scope = world.scope(0).epoch
        removed = backend.sweep(scope, [winner, other])
        assert removed == 2 * len(backend.deltas(loser))
        assert backend.sweep(scope, [winner, other]) == 0
        world.publish([winner, other], changes)
        world.check()

    def test_commit_and_recover_change_nothing(self, world: World, harness: StateHarness) -> None:
        harness.make().recover(EpochScope("application", EpochKey("main", 0), 1, None))
        scope = world.scope(0).epoch
        handles = world.run(counts=counted(*range(10)))
        before = _files(world)
        for backend in (harness.make(), harness.make()):
            backend.commit(scope, handles)
            backend.commit(scope, handles)
            backend.recover(scope)
        assert _files(world) == before
        world.check()

    @pytest.mark.usefixtures("files_of_their_own")
    def test_abort_and_discard_leave_nothing(self, world: World, harness: StateHarness) -> None:
        handles = world.pre_commit({COUNTS.id: counted(*range(10)), SEEN.id: seen(1, b"a")})
        assert len(_files(world)) == 3
        for _ in range(2):
            harness.make().abort(world.scope(0).epoch, handles)
            assert _files(world) == []
        transaction = world.start()
        world.stage(transaction, {COUNTS.id: counted(*range(10))}, 0)
        transaction.discard()
        transaction.discard()
        assert _files(world) == []

    def test_a_transaction_that_ended_cannot_be_pre_committed(self, world: World) -> None:
        transaction = world.start()
        world.stage(transaction, {COUNTS.id: counted(*range(10))}, 0)
        transaction.discard()
        with pytest.raises(SnapshotError, match="ended"):
            transaction.pre_commit()
        assert _files(world) == []

    @pytest.mark.usefixtures("files_of_their_own")
    def test_sweep_spares_other_operators_and_epochs(self, world: World, harness: StateHarness) -> None:
        world.run(counts=counted(*range(10)))
        published = _files(world)
        scope = world.scope(0).epoch
        world.pre_commit({COUNTS.id: counted(*range(10))})
        folder = layout.deltas(scope.key)
        foreign = [f"{folder}/{name}-00000-abc.parquet" for name in ("counts2", "other", "other.counts")]
        for path in foreign:
            harness.store.write(path, b"")
        harness.store.write(f"{folder}/.counts-00001-abc.parquet.12{layout.TEMPORARY}", b"cut sho")
        assert harness.make().sweep(scope, []) == 3
        assert _files(world) == sorted(published + foreign)

    def test_a_full_disk_is_said_so_and_leaves_nothing(self, world: World) -> None:
        world.run(counts=counted(*range(10)))
        before = _files(world)

        def full_at_the_second_table(point: FaultPoint, epoch: int | None) -> None:
            hits.append(point.name)
            if hits.count("T3.before-delta") == 2:
                raise OSError(28, "No space left on device")

        hits: list[str] = []
        transaction = world.start(0)
        world.stage(transaction, {COUNTS.id: counted(*range(10)), SEEN.id: _both_subtasks()}, 0)
        with injected(full_at_the_second_table), pytest.raises(StorageFull, match=r"counts\.seen-00000"):
            transaction.pre_commit()
        assert hits == ["T3.before-delta", "T3.delta-written", "T3.before-delta"]
        assert _files(world) == before
        world.check()

    # Restoring.

    def test_a_new_worker_restores_from_bases_and_deltas(self, world: World, harness: StateHarness) -> None:
        world.run(counts=counted(*range(100)), seen=seen(1, b"a", b"b"))
        world.run(counts=uncounted(*range(10)) + counted(*range(50, 60), count=2), seen=unseen(1, b"a"))
        world.compact()
        world.check()
        world.run(counts=counted(*range(5), count=3) + uncounted(*range(90, 95)))
        world.run()
        for forget in (harness.new_worker, harness.new_machine):
            forget()
            world.check()

    @pytest.mark.parametrize("merged", [0, 1, 2])
    def test_a_new_machine_restores_from_several_runs(self, world: World, harness: StateHarness, merged: int) -> None:
        """Each run decides the keys that it has: later ones put, change, delete and put again."""
        sizes = replace(SMALL_CELLS, most=1 << 30, depth=lambda sizes: min(merged, len(sizes) - 2))
        world.run(counts=counted(*range(300)), seen=seen(1, b"a", b"b"))
        world.compact(sizes)
        for changes in (
            counted(*range(40), count=2) + uncounted(*range(100, 160)),
            counted(*range(100, 130), count=3) + uncounted(*range(10)),
            counted(*range(5), count=4) + uncounted(*range(300, 310)),
        ):
            world.run(counts=changes, seen=unseen(1, b"a"))
            world.compact(sizes)
            harness.new_machine()
            world.check()
        ages = {run.age for run in world.chains[COUNTS.id].bases}
        assert len(ages) == {0: 4, 1: 2, 2: 2}[merged]
        assert any(run.deletes for run in world.chains[COUNTS.id].bases)

    def test_bases_may_be_empty(self, world: World, harness: StateHarness) -> None:
        world.run(counts=counted(1))
        world.run(counts=uncounted(1))
        world.compact()
        harness.new_machine()
        world.check()
        world.run(counts=counted(1, 2))
        world.check()

    def test_another_parallelism_restores_the_same_rows(self, world: World, harness: StateHarness) -> None:
        world.run(counts=counted(*range(100)), seen=seen(1, b"a"))
        world.compact()
        world.run(counts=counted(*range(50, 120), count=2), seen=seen(2, b"a"))
        for parallelism in (3, 1, 4, 2):
            world.parallelism = parallelism
            world.check()
            world.run(counts=counted(parallelism, count=parallelism) + uncounted(60 + parallelism))
            harness.new_machine()
            world.check()

    def test_a_corrupt_file_is_named(self, world: World, harness: StateHarness) -> None:
        world.run_elsewhere(counts=counted(*range(100)))
        for compacted in (False, True):
            harness.new_machine()
            if compacted:
                world.compact()
            chain = world.chains[COUNTS.id]
            files = [base.file for base in chain.bases] + [delta.file for link in chain.links for delta in link.deltas]
            data = harness.store.read(files[0].path)
            harness.store.write(files[0].path, data[:50] + bytes([data[50] ^ 1]) + data[51:])
            with pytest.raises(FileCorrupt, match=files[0].path):
                world.check()
            harness.store.delete(files[0].path)
            with pytest.raises(FileMissing, match=files[0].path):
                world.check()
            harness.store.write(files[0].path, data)
            world.check()

    def test_a_chain_that_does_not_end_at_the_parent_is_refused(self, world: World, harness: StateHarness) -> None:
        world.run(counts=counted(1))
        before = world.chains[COUNTS.id]
        world.run(counts=counted(2))
        world.chains[SEEN.id] = before
        with pytest.raises(SnapshotError, match=r"'counts\.seen' ends at main/1.*main/2"):
            world.start()


def _files(world: World) -> list[str]:
    return world.harness.store.list(world.branch)


def _both_subtasks() -> list[dict[str, object]]:
    return [entry for number in range(8) for entry in seen(number, b"a")]
