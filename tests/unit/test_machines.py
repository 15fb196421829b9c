"""Machines on which subtasks run: names of their caches, and what manifests, reports and the command line say."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from epochal.backends import boot_folders
from epochal.backends.boot_folders import MOST_HOST_CHARACTERS, cache_name
from epochal.cli.application_view import placement_page
from epochal.client.models import Placement
from epochal.contracts.handle import Handle
from epochal.contracts.measurements import Origin, PlacementReport
from epochal.engine.job import Answers, collect
from epochal.engine.meter import Meter
from epochal.snapshots import read_counts
from epochal.snapshots.manifest import placement_extras
from tests.kit.manifests import plain_manifest


def test_a_cache_has_one_name_for_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boot_folders, "gethostname", lambda: "h" * 60)
    cache = tmp_path / "cache"

    def of_another_process(_: int) -> str:
        boot_folders._names.clear()
        return cache_name(str(cache))

    with ThreadPoolExecutor(8) as threads:
        names = set(threads.map(of_another_process, range(64)))
    (name,) = names
    assert name.startswith("h" * MOST_HOST_CHARACTERS + "-") and len(name) == MOST_HOST_CHARACTERS + 9
    assert [path.name for path in (cache / "name").glob("*/*")] == ["name"]
    assert cache_name(str(tmp_path / "another")) != name
    shutil.rmtree(cache)
    emptied = cache_name(str(cache))
    assert emptied != name and cache_name(str(cache)) == emptied


def test_a_cache_has_a_name_on_a_file_system_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError("Operation not permitted")

    monkeypatch.setattr(boot_folders.os, "link", refused)
    name = cache_name(str(tmp_path))
    boot_folders._names.clear()
    assert cache_name(str(tmp_path)) == name


def test_a_cache_has_another_name_after_a_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = cache_name(str(tmp_path))
    monkeypatch.setattr(boot_folders, "_boot", lambda: "another-boot")
    boot_folders._names.clear()
    assert cache_name(str(tmp_path)) != name


def test_manifests_have_the_machines_of_several() -> None:
    machines = {"totals": ["b", "a", "b"], "streaks": ["a", "a", "b"]}
    extras = placement_extras(machines)
    assert extras == {"placement": {"machines": ["a", "b"], "operators": {"streaks": [0, 0, 1], "totals": [1, 0, 1]}}}
    assert plain_manifest(1).model_copy(update={"extras": extras}).machines == machines
    assert placement_extras({"totals": ["a", "a"]}) == {}
    assert plain_manifest(1).machines == {}


def test_an_operator_with_an_unknown_machine_is_left_out() -> None:
    handles = {
        name: [Handle(owner=name, subtask=subtask, rows=0, bytes=0, payload={}) for subtask in range(2)]
        for name in ("totals", "streaks")
    }
    answers = Answers(handles, [], frozenset(), [], machines={"totals": {0: "a", 1: "b"}, "streaks": {1: "a"}})
    assert collect(answers, {"totals": 2, "streaks": 2}, []).machines == {"totals": ["a", "b"]}


def test_reports_count_moves_and_bytes() -> None:
    meter = Meter()
    assert meter.report().moment.placement is None
    for epoch, machines in enumerate((["a", "b"], ["a", "b"], ["b", "b"], ["b", "b", "c"], ["b", "c", "c"]), 1):
        read: dict[Origin, int] = {"disk": 10, "store": epoch}
        meter.ran_on(PlacementReport(epoch=epoch, machines={"totals": tuple(machines)}, read_bytes=read))
    report = meter.report()
    found = report.moment.placement
    assert found is not None and (found.epoch, found.moves, found.machines) == (5, 2, {"totals": ("b", "c", "c")})
    assert found.read_bytes == {"disk": 10, "store": 5} and report.totals.read_bytes == {"disk": 50, "store": 15}
    assert (report.totals + report.totals).read_bytes == {"disk": 100, "store": 30}
    crowded = {"totals": ("a",) * 2000}
    meter.ran_on(PlacementReport(epoch=6, machines=crowded, unplaced="all executors share a cache"))
    found = meter.report().moment.placement
    assert found is not None and found.machines == {} and found.unplaced == "all executors share a cache"


def test_reads_are_counted_by_origin() -> None:
    before = read_counts.totals()
    read_counts.count("disk", 5)
    read_counts.count("store", 7)
    read_counts.count("disk", 1)
    assert read_counts.totals() - before == {"disk": 6, "store": 7}


def test_the_page_lists_the_subtasks_of_each_machine() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    placement = Placement(
        application="orders",
        reported_at=at,
        epoch=7,
        machines={"totals": ("a-1", "b-2", "a-1"), "streaks": ("b-2", "b-2", "b-2")},
        moves=2,
        unplaced=None,
        read_bytes={"disk": 2048, "store": 0},
        moved_stragglers=(),
    )
    text = drawn(placement, at)
    assert "epoch 7, as of just now, 2 moves of subtasks; state read: 2.0 KiB from the machine's cache" in text, text
    rows = [line.split() for line in text.splitlines()]
    assert ["a-1", "0,", "2", "–"] in rows and ["b-2", "1", "0,", "1,", "2"] in rows
    assert "anywhere" not in text
    off = placement.model_copy(update={"machines": {}, "unplaced": "Spark runs in one process"})
    assert "Spark runs subtasks anywhere: Spark runs in one process." in drawn(off, at)
    assert "has not reported an epoch" in drawn(placement.model_copy(update={"epoch": None}), at)


def drawn(placement: Placement, now: datetime | None = None) -> str:
    stream = StringIO()
    Console(file=stream, width=120).print(placement_page(placement, now))
    return stream.getvalue()
