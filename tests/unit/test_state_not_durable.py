"""``durable=False``: state only in caches of machines, with aborted epochs, killed drivers and lost caches."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from epochal import KeyedProcess, ListState, MapState, Pipeline, ValueState
from epochal.backends import boot_folders, cached_state, heap, lmdb, recent
from epochal.connectors import console, generator
from epochal.contracts.registry import STATE_BACKENDS, find, names
from epochal.contracts.state import StateBackend
from epochal.declarations.state import StateDeclaration
from epochal.engine.program import changes_since
from epochal.errors import NotFound, PipelineError
from epochal.pipeline import analysis
from epochal.snapshots.chain import MEMBER, began_empty
from epochal.snapshots.difference import table_difference
from epochal.snapshots.reader import SnapshotReader
from epochal.snapshots.references import References
from epochal.snapshots.verification import Verification
from epochal.state.evolution import compare
from epochal.state.table import Column, StateTable
from tests.kit.lives import Life, Step, struct

ROWS = pa.schema([("id", pa.int64()), ("name", pa.string())])
NAMES = "abcdefg"
PLAIN = Step()
CACHED = ("seen.ids", "seen.latest", "seen.lost")


class Seen(KeyedProcess):
    """Yields the number of rows of each name by durable state and by three states that are not durable."""

    kept = ValueState("count bigint")
    lost = ValueState("count bigint", durable=False)
    ids = MapState(key="id bigint", value="present boolean", durable=False)
    latest = ListState("id bigint", durable=False)
    output = struct(name="string", kept="long", lost="long", ids="long", latest="long")

    def process(self, key: Any, rows: Any, ctx: Any) -> Iterator[Any]:
        count = 0
        for row in rows:
            count += 1
            self.ids.put(row.id, True)
            if row.id % 3 == 0:
                self.ids.remove(row.id)
            self.latest.append(row.id)
        self.kept.set((self.kept.get() or 0) + count)
        self.lost.set((self.lost.get() or 0) + count)
        yield key.name, self.kept.get(), self.lost.get(), len(self.ids.items()), len(self.latest)


@pytest.fixture(params=["heap", "lmdb"])
def life(request: pytest.FixtureRequest) -> Iterator[Life]:
    pipeline = Pipeline("seen")
    rows = pipeline.read("rows", generator.source({"id": "id", "name": "string(id)"}))
    rows.key_by("name").process(Seen, "seen").write("out", console.sink())
    with Life(pipeline, {"rows": ROWS}, state_backend=request.param, keeps_caches=True) as life:
        yield life


class Model:
    """Expected state that is not durable, if no cache was lost since ``since``."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.ids: dict[str, list[int]] = {name: [] for name in NAMES}
        self.since: dict[str, int] = dict.fromkeys(NAMES, 0)
        self._next = 0

    def epoch(self, step: Step = PLAIN, names: str = NAMES) -> None:
        rows = []
        for name in names:
            self._next += 1
            rows.append({"id": self._next, "name": name})
        self.life.epoch(step, rows=rows)
        for row in rows:
            self.ids[row["name"]].append(row["id"])

    def forget(self, names: str = NAMES) -> None:
        """Drop the expected state of these names."""
        for name in names:
            self.since[name] = len(self.ids[name])

    def check(self, names: str = NAMES) -> None:
        """Compare the output of the last epoch."""
        shown = {row["name"]: row for row in self.life.shown("out")[-1]}
        assert set(shown) == set(names)
        for name, row in shown.items():
            present = self.ids[name][self.since[name] :]
            assert row["kept"] == len(self.ids[name])
            assert (row["lost"], row["latest"]) == (len(present), len(present)), name
            assert row["ids"] == sum(id % 3 != 0 for id in present)


def start_new_worker() -> None:
    """Clear the caches in memory, as in a new worker on the same machine."""
    heap.forget()
    lmdb.forget()
    recent.forget()


@pytest.mark.claim(
    "docs/concepts/guarantees.md: While the cache of the subtask's machine exists, the state is exactly-once as all "
    "state is."
)
def test_state_continues_while_the_cache_exists(life: Life) -> None:
    model = Model(life)
    for step in (Step(), Step("abort"), Step("die decided"), Step("restart")):
        model.epoch(step)
        start_new_worker()
        model.epoch(names="ab")
        model.check("ab")
    model.epoch()
    model.check()
    assert [began_empty(manifest) for manifest in life.manifests] == [{}] * len(life.manifests)
    assert all(delta.table == "seen.kept" for manifest in life.manifests for delta in manifest.deltas)


@pytest.mark.claim(
    "docs/concepts/guarantees.md: When the cache is lost, the subtask begins with an empty table, and the "
    "manifest of that epoch says so."
)
def test_state_begins_empty_after_a_lost_cache_and_the_manifest_records_it(life: Life) -> None:
    model = Model(life)
    model.epoch()
    model.epoch()
    shutil.rmtree(life.caches)  # another machine
    start_new_worker()
    model.forget()
    model.epoch()
    model.check()
    assert began_empty(life.manifests[-1]) == dict.fromkeys(CACHED, (0, 1))
    model.epoch()
    model.check()
    assert began_empty(life.manifests[-1]) == {}


@pytest.mark.parametrize("life", ["lmdb"], indirect=True)
def test_a_subtask_that_alternates_between_machines_leaves_no_files(life: Life) -> None:
    """Each of two machines has a cache of the last epoch that ran there, which is not the parent."""
    model, other = Model(life), life.caches.with_name(f"{life.caches.name}-other")
    model.epoch()
    for number in range(4):
        life.caches.rename(other.with_name(f"{other.name}-aside"))
        (other.rename(life.caches) if other.exists() else life.caches.mkdir())
        other.with_name(f"{other.name}-aside").rename(other)
        start_new_worker()
        model.forget()
        model.epoch()
        model.check()
        assert began_empty(life.manifests[-1]) == dict.fromkeys(CACHED, (0, 1)), number
        assert len(list((life.caches / "undurable").rglob("*.*"))) == 2 * 2 * len(CACHED)  # a delta and its list
    shutil.rmtree(other)


@pytest.mark.claim("docs/concepts/guarantees.md: or with the rows of an older epoch.")
def test_state_begins_empty_after_a_reboot(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(life)
    model.epoch()
    monkeypatch.setattr(boot_folders, "_boot", lambda: "another-boot")
    start_new_worker()
    model.forget()
    model.epoch()
    model.check()
    assert began_empty(life.manifests[-1]) == dict.fromkeys(CACHED, (0, 1))
    folders = [folder.name for folder in (life.caches / "undurable").iterdir()]
    assert folders == ["another-boot"]


@pytest.mark.parametrize(
    ("life", "damage"),
    [("heap", "cut"), ("heap", "changed"), ("heap", "missing"), ("lmdb", "changed")],
    indirect=["life"],
)
@pytest.mark.claim("docs/concepts/guarantees.md: It never continues with a part of its rows")
def test_a_damaged_file_empties_the_table_of_its_subtask(life: Life, damage: str) -> None:
    """The other tables keep their state."""
    model = Model(life)
    model.epoch()
    (file, *_) = sorted((life.caches / "undurable").rglob("seen.lost-00001-*.parquet"))
    data = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(data[:-1] if damage == "cut" else data[:-20] + bytes(20))
    start_new_worker()
    if life.state_backend == "lmdb":
        shutil.rmtree(life.caches / "lmdb")
    life.epoch(rows=[{"id": 100 + number, "name": name} for number, name in enumerate(NAMES)])
    assert began_empty(life.manifests[-1]) == {"seen.lost": (1,)}
    counts = Counter(row["lost"] for row in life.shown("out")[-1])
    assert counts[1] > 0 and counts[2] > 0 and {row["latest"] for row in life.shown("out")[-1]} == {2}


def test_state_begins_empty_after_a_rescale_and_on_a_new_branch(life: Life) -> None:
    model = Model(life)
    model.epoch()
    life.restart(3)
    (change,) = (
        change for change in changes_since(life.store, life.decided[-1], life.program) if change.kind == "rescale"
    )
    assert change.detail == {"parallelism": [2, 3], "emptied": ["seen.lost", "seen.ids", "seen.latest"]}
    model.epoch(Step("restart", parallelism=3))
    model.forget()
    assert began_empty(life.manifests[-1]) == dict.fromkeys(CACHED, (0, 1, 2))
    model.since = dict.fromkeys(NAMES, 1)
    model.check()
    model.epoch(Step(parallelism=3))
    model.check()
    life.continue_from(1, "branched")
    life.epoch(Step(parallelism=3), rows=[{"id": 50, "name": "a"}])
    assert began_empty(life.manifests[-1]) == dict.fromkeys(CACHED, (0, 1, 2))


@pytest.mark.parametrize("life", ["heap"], indirect=True)
def test_subtasks_compact_their_cached_state(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_state, "MOST_DELTAS", 2)
    model = Model(life)
    for number in range(9):
        model.epoch(Step("abort" if number == 3 else "nothing"))
        if number % 4 == 0:
            start_new_worker()
        model.check()
    assert [began_empty(manifest) for manifest in life.manifests] == [{}] * 9
    files = list((life.caches / "undurable").rglob("seen.lost-00000-*.parquet"))
    assert 1 <= len(files) <= 2 * 2 + 2
    assert len(list((life.caches / "undurable").rglob("*.json"))) <= 2 * 3 * 2 * 3


@pytest.mark.parametrize("life", ["heap"], indirect=True)
@pytest.mark.claim("Thesis, 4.6")
def test_state_that_is_not_durable_is_in_no_snapshot(life: Life) -> None:
    model = Model(life)
    for _ in range(3):
        model.epoch()
    head = life.decided[-1]
    snapshot = SnapshotReader(life.store, head)
    assert [row["count"] for row in snapshot.read("seen.kept").to_pylist()] == [3] * len(NAMES)
    for read in (
        lambda: snapshot.read("seen.lost"),
        lambda: snapshot.entries("seen.ids", [("a",)]),
        lambda: table_difference(SnapshotReader(life.store, life.decided[0]), snapshot, None, "seen.lost"),
    ):
        with pytest.raises(NotFound, match=r"State 'seen\.(lost|ids)' is not durable, and in no snapshot"):
            read()
    assert not any(path.endswith(".json") and "held" in path for path in References(life.store).needed(head))
    assert not any("seen.lost" in path for path in life.store.list(""))
    assert not Verification(life.store, [head], quick=False).run().findings
    assert set(life.manifests[-1].extras[MEMBER]) == set(CACHED)


def a_table(**more: Any) -> StateTable:
    state = ValueState("count bigint", **more)
    state.name = "count"
    return state.table("seen", (Column(name="name", type="string"),))


def test_state_is_not_copied_between_durable_and_non_durable_tables() -> None:
    durable, not_durable = a_table(), a_table(durable=False)
    assert not not_durable.queryable and "durable" not in durable.model_dump()
    assert StateTable.model_validate_json(not_durable.model_dump_json()) == not_durable
    (change,) = compare([durable], [not_durable])
    assert "--allow-dropped-state seen.count" in change.problems[0]
    assert not compare([durable], [not_durable], ["seen.count"])[0].problems
    (change,) = compare([not_durable], [durable])
    assert not change.problems and change.notes == ("State table 'seen.count' becomes durable, and begins empty.",)
    assert not compare([not_durable], [])[0].problems


@pytest.mark.parametrize(
    ("kind", "scope"),
    [(ListState, "union"), (ListState, "partial"), (ValueState, "broadcast"), (ValueState, "partial")],
)
def test_shared_state_must_be_durable(kind: type[StateDeclaration], scope: str) -> None:
    with pytest.raises(PipelineError, match=rf"{kind.__name__} of scope '{scope}' must be durable"):
        kind("n bigint", scope=scope, durable=False)
    assert ListState("n bigint", scope="operator", durable=False).durable is False


def test_a_backend_without_caches_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis, "find", lambda group, name: StateBackend)
    with pytest.raises(PipelineError, match=r"State 'seen.count' has durable=False, which the state backend 'plain'"):
        analysis.check_cached_state([a_table(durable=False)], "plain")
    analysis.check_cached_state([a_table(durable=True)], "plain")


@pytest.mark.parametrize("backend", ["heap", "lmdb"])
def test_the_backends_of_epochal_accept_state_that_is_not_durable(backend: str) -> None:
    analysis.check_cached_state([a_table(durable=False)], backend)


@pytest.mark.parametrize("backend", sorted(names(STATE_BACKENDS)))
def test_backends_that_return_cached_state_declare_it(backend: str) -> None:
    found = find(STATE_BACKENDS, backend)
    assert found.has_cached_state == (found.cached is not StateBackend.cached)
