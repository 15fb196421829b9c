"""Client and commands that read older state: times, histories, blame, scans, differences, lineage."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from epochal.cli.main import main
from epochal.client import Client
from epochal.errors import InvalidInput, NotFound
from tests.service.lookups import DELAYS, VISITS, StateDriver, get, place, route

if TYPE_CHECKING:
    from tests.service.conftest import Plane


@pytest.fixture
def driver(plane: Plane) -> StateDriver:
    """Five epochs; the key JFK,LAX is changed by the first, third and fifth."""
    plane.application()
    driver = StateDriver(plane)
    driver.epoch((DELAYS, [route("JFK", "LAX", 1, 2.5), route("JFK", "SFO", 4, 1.0)]))
    driver.epoch((VISITS, [place("N1", "JFK", 1), place("N1", "LAX", 2)]))
    driver.epoch((DELAYS, [route("JFK", "LAX", 2, None)]))
    driver.epoch()
    driver.epoch((DELAYS, [route("JFK", "LAX", 3, 7.0), route("JFK", "SFO")]))
    get(plane, "JFK,LAX", min_epoch=5)
    return driver


@pytest.fixture
def client(plane: Plane) -> Iterator[Client]:
    with Client(plane.settings.url, plane.settings.admin_token_file.read_text().strip()) as client:
        yield client


def test_client_reads_older_state_histories_and_differences(plane: Plane, client: Client, driver: StateDriver) -> None:
    application = client.application("flights")
    delays = application.state("delays")
    times = {epoch.epoch: epoch.committed_at for epoch in application.epochs.list()}
    assert delays.get("JFK", "LAX", at=times[4]).value == {"flights": 2, "worst": None}
    assert delays.lookup([route("JFK", "LAX")], at=times[1]).values == [{"flights": 1, "worst": 2.5}]
    changes = delays.history("JFK", "LAX", limit=None).items
    assert [(change.epoch, change.new and change.new["flights"]) for change in changes] == [(5, 3), (3, 2), (1, 1)]
    assert changes[0].at == times[5]
    first = delays.history("JFK", "LAX", limit=1)
    assert len(first.items) == 1 and first.next_cursor is not None
    assert [change.epoch for change in delays.history("JFK", "LAX", epoch=4).items] == [3, 1]
    blame = delays.blame("JFK", "LAX", epoch=4)
    assert (blame.change.epoch, blame.slices["flights"].detail) == (3, {"files": ["3.json"]})
    assert [row.value["flights"] for row in delays.scan_all("JFK", limit=1, epoch=1)] == [1, 4]
    assert [row.key["destination"] for row in delays.scan("JFK", "L", begins_with=True).items] == ["LAX"]
    diff = application.snapshots.diff(1, "head")
    assert [(table.table, table.added, table.changed, table.deleted) for table in diff.tables] == [
        ("delays", 0, 1, 1),
        ("hidden", 0, 0, 0),
        ("visits.places", 2, 0, 0),
    ]
    rows = application.snapshots.diff_rows(1, 5, "delays")
    assert [(row.kind, row.key["destination"]) for row in rows] == [("changed", "LAX"), ("deleted", "SFO")]
    with pytest.raises(NotFound):
        delays.blame("no", "where")
    with pytest.raises(InvalidInput, match="time zone"):
        delays.get("JFK", "LAX", at=datetime.fromisoformat("2030-01-01"))
    with pytest.raises(NotFound, match="first epoch was committed"):
        delays.get("JFK", "LAX", at=datetime.now(UTC) - timedelta(days=3))


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def epochal(
    plane: Plane, driver: StateDriver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Run a command in this process; return its exit code, standard output and standard error."""
    monkeypatch.setenv("EPOCHAL_URL", plane.settings.url)
    monkeypatch.setenv("EPOCHAL_TOKEN", plane.settings.admin_token_file.read_text().strip())
    monkeypatch.setenv("COLUMNS", "160")

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exited:
            main(arguments)
        written = capsys.readouterr()
        return int(exited.value.code or 0), written.out, written.err

    return run


def document(run: Run, *arguments: str) -> Any:
    code, output, errors = run(*arguments, "--json")
    assert code == 0, errors
    return json.loads(output)


def test_get_shows_history_and_blame(epochal: Run) -> None:
    code, output, _ = epochal("get", "flights", "delays", "JFK,LAX", "--history")
    assert code == 0
    assert "flights 2 → 3, worst null → 7.0" in output
    assert "flights=1, worst=2.5" in output
    code, output, _ = epochal("get", "flights", "delays", "JFK", "LAX", "--blame")
    assert code == 0
    for text in ("epoch 5", "flights.py", "threshold=15", "5.json", "flights 2 → 3"):
        assert text in output
    code, output, _ = epochal("get", "flights", "visits.places", "N1", "--history")
    assert "N1, JFK" in output and "late=2" in output
    history = document(epochal, "get", "flights", "delays", "JFK,LAX", "--history", "--limit", "2")
    assert [item["epoch"] for item in history["items"]] == [5, 3]
    assert document(epochal, "get", "flights", "delays", "JFK,LAX", "--blame", "--epoch", "4")["change"]["epoch"] == 3


def test_get_reads_state_as_of_a_time(plane: Plane, epochal: Run) -> None:
    moment = plane.get("/v1/applications/flights/epochs/3")["committed_at"]
    assert document(epochal, "get", "flights", "delays", "JFK,LAX", "--at", moment)["value"]["flights"] == 2
    assert epochal("get", "flights", "delays", "JFK,LAX", "--at", "yesterday")[0] == 2
    assert epochal("get", "flights", "delays", "JFK,LAX", "--at", "1999-01-01")[0] == 3
    assert epochal("get", "flights", "delays", "JFK,LAX", "--history", "--blame")[0] == 2
    assert epochal("get", "flights", "delays", "JFK,LAX", "--tag", "none")[0] == 3
    assert epochal("get", "flights", "delays", "no,where", "--blame")[0] == 3


def test_scan_lists_rows_in_pages(epochal: Run) -> None:
    code, output, _ = epochal("scan", "flights", "delays", "JFK,L*")
    assert code == 0
    assert "LAX" in output and "epoch 5" in output
    page = document(epochal, "scan", "flights", "visits.places", "--limit", "1")
    assert [row["key"]["airport"] for row in page["items"]] == ["JFK"]
    again = document(epochal, "scan", "flights", "visits.places", "--cursor", page["next_cursor"])
    assert [row["key"]["airport"] for row in again["items"]] == ["LAX"]
    assert "No rows" in epochal("scan", "flights", "delays", "X")[1]
    assert "SFO" in epochal("scan", "flights", "delays", "--epoch", "1")[1]
    assert epochal("scan", "flights", "hidden")[0] == 3


def test_diff_shows_tables_and_rows(epochal: Run) -> None:
    code, output, _ = epochal("diff", "flights", "3", "5")
    assert code == 0
    assert "delays" in output and "same" in output and "2 epochs" in output
    code, output, _ = epochal("diff", "flights", "1", "--table", "delays")
    assert "flights 1 → 3" in output and "(deleted)" in output
    assert document(epochal, "diff", "flights", "1", "2")["to"]["epoch"] == 2
    rows = document(epochal, "diff", "flights", "1", "5", "-t", "delays", "-n", "1")["items"]
    assert [row["kind"] for row in rows] == ["changed"]
    assert epochal("diff", "flights", "1", "nothing")[0] == 3
    assert epochal("diff", "flights", "-1")[0] == 2


def test_lineage_is_paged_and_drawn(plane: Plane, epochal: Run, driver: StateDriver) -> None:
    for _ in range(6):
        driver.epoch()
    code, output, _ = epochal("lineage", "flights")
    assert code == 0
    assert "9 epochs" in output and "2–10" in output
    first = document(epochal, "lineage", "flights", "--limit", "2")
    assert [(node["first"], node["epoch"]) for node in first["nodes"]] == [(11, 11), (2, 10)]
    assert "--cursor" in epochal("lineage", "flights", "--limit", "2")[1]
    rest = document(epochal, "lineage", "flights", "--cursor", first["next_cursor"])
    assert [node["epoch"] for node in rest["nodes"]] == [1]
    assert len(document(epochal, "lineage", "flights", "--all")["nodes"]) == 11
    assert epochal("lineage", "flights", "--format", "dot")[1].startswith('digraph "flights"')
    assert epochal("lineage", "flights", "--format", "svg")[1].startswith("<svg ")
    assert epochal("lineage", "flights", "--format", "svg", "--all")[0] == 2
