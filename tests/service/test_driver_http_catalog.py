"""The driver's catalog over a real socket, with a control plane that loses answers or is unavailable."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from epochal.contracts.catalog import Directive, DriverStatus, EpochCounts, Failure
from epochal.contracts.identity import EpochKey
from epochal.driver import http_catalog
from epochal.driver.heartbeat import TOLERATED_FAILURES, HeartbeatingCatalog, HeartbeatsFailed
from epochal.driver.http_catalog import HttpCatalog
from epochal.engine.failures import failure_of
from epochal.errors import CatalogFull, CatalogUnavailable, CatalogWentBack, Conflict, EpochalError, Fenced
from epochal.service.domain.failures import permanent
from epochal.wire.bodies import UnreadableAnswer
from epochal.wire.http import EARLIER_SECONDS, ControlPlanes
from tests.service.scripted_control_plane import MANIFEST, POINT, Reply, Script, control_plane, problem

STATUS = DriverStatus(phase="running", epoch=3)


def catalog(url: str, patience: float | None = 20.0) -> HttpCatalog:
    return HttpCatalog([url], "secret", "e1", 2, patience_seconds=patience)


CALLS: list[tuple[Callable[[HttpCatalog], Any], tuple[str, str, Any]]] = [
    (
        lambda client: client.open_epoch(4, EpochKey("main", 3)),
        ("POST", "epochs", {"epoch": 4, "parent": {"branch": "main", "epoch": 3}}),
    ),
    (
        lambda client: client.prepare_epoch(4, None, MANIFEST, EpochCounts(rows_in=7)),
        (
            "POST",
            "epochs/4/prepare",
            {
                "parent": None,
                "manifest": MANIFEST.model_dump(),
                "counts": {"rows_in": 7, "rows_out": 0, "state_rows": 0, "state_bytes": 0},
                "terms": {"version": None, "changes": [], "opened_for": [], "watermarks": {}, "next_due": None},
            },
        ),
    ),
    (lambda client: client.commit_epoch(4), ("POST", "epochs/4/commit", None)),
    (
        lambda client: client.abort_epoch(4, Failure(type="source-error", message="lost")),
        (
            "POST",
            "epochs/4/abort",
            {"failure": {"type": "source-error", "message": "lost", "step": None, "traceback": None}},
        ),
    ),
    (
        lambda client: client.complete("d1", MANIFEST),
        ("POST", "directives/d1", {"head": MANIFEST.model_dump(), "failure": None}),
    ),
    (lambda client: client.finish(None), ("POST", "finish", {"failure": None})),
]


@pytest.mark.parametrize(("call", "expected"), CALLS, ids=[expected[1] for _, expected in CALLS])
def test_a_call_is_retried_after_a_lost_answer(
    call: Callable[[HttpCatalog], Any], expected: tuple[str, str, Any]
) -> None:
    script = Script([Reply(lost=True), Reply(503), Reply()])
    with control_plane(script) as url:
        call(catalog(url))
    assert script.asked == [expected] * 3
    assert script.tokens == {"Bearer secret"}


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (problem(409, "fenced", "attempt 3 owns the branch"), Fenced),
        (problem(409, "conflict"), Conflict),
        (problem(418, "a-new-one"), EpochalError),
        (Reply(400, ["no problem document"]), EpochalError),
    ],
)
def test_problem_responses_are_raised_as_typed_errors(reply: Reply, error: type[EpochalError]) -> None:
    script = Script([reply])
    with control_plane(script) as url, pytest.raises(error) as raised:
        catalog(url).commit_epoch(4)
    assert type(raised.value) is error
    assert len(script.asked) == 1
    if error is Fenced:
        assert raised.value.message == "attempt 3 owns the branch"


@pytest.mark.parametrize("slug", ["outcome-unknown", "catalog-unavailable", "catalog-full"])
def test_a_call_with_an_unknown_outcome_is_retried(slug: str) -> None:
    script = Script([problem(503, slug), Reply()])
    with control_plane(script) as url:
        catalog(url).commit_epoch(4)
    assert len(script.asked) == 2


def test_the_driver_waits_for_a_control_plane_and_logs_it_once(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    client = catalog(f"http://127.0.0.1:{port}", patience=None)
    caplog.set_level(logging.WARNING, "epochal.driver")
    done = threading.Event()

    def commit() -> None:
        client.commit_epoch(4)
        done.set()

    thread = threading.Thread(target=commit, daemon=True)
    thread.start()
    assert not done.wait(0.6)
    with control_plane(Script([Reply()]), port):
        assert done.wait(20)
    thread.join()
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2 and "away" in messages[0] and "back" in messages[1]


def test_retries_after_a_full_disk_end_with_the_problem() -> None:
    script = Script([problem(503, "catalog-full", "No space is left.")])
    with control_plane(script) as url, pytest.raises(CatalogFull, match="No space is left"):
        catalog(url, patience=0.3).commit_epoch(4)


def test_retries_of_an_unreachable_control_plane_end_with_an_error() -> None:
    with pytest.raises(CatalogUnavailable, match="Is it up"):
        catalog("http://127.0.0.1:9", patience=0.3).commit_epoch(4)


def test_an_unknown_epoch_is_none() -> None:
    with control_plane(Script([problem(404, "not-found")])) as url:
        assert catalog(url).epoch(9) is None


def test_heartbeats_continue_and_directives_wait_while_the_loop_is_busy() -> None:
    stop = {"id": "d1", "kind": "stop", "arguments": {}}
    script = Script([Reply(200, {"directives": [stop]})])
    with control_plane(script) as url:
        client = HeartbeatingCatalog(catalog(url), lambda _error: None, interval_seconds=0.01)
        client.start()
        while len(script.asked) < 5:
            assert script.answered.wait(20)
        (directive,) = client.heartbeat(STATUS)
        assert directive.kind == "stop"
        script.replies = [Reply(200, {"directives": []})]
        client.complete("d1", None)
        assert client.heartbeat(STATUS) == ()
        while ("POST", "heartbeat", STATUS.model_dump(mode="json")) not in script.asked:
            script.answered.clear()
            assert script.answered.wait(20)
        client.stop()


def test_a_fenced_heartbeat_ends_the_driver() -> None:
    ended = threading.Event()
    with control_plane(Script([problem(409, "fenced")])) as url:
        client = HeartbeatingCatalog(catalog(url), lambda _error: ended.set(), interval_seconds=0.01)
        client.start()
        assert ended.wait(20)
        with pytest.raises(Fenced):
            client.open_epoch(4, None)
        with pytest.raises(Fenced):
            client.heartbeat(STATUS)


def test_a_refused_heartbeat_during_finish_does_not_fence_the_driver(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR, "epochal.driver")
    finishing, refused = threading.Event(), threading.Event()

    class Ending(HttpCatalog):
        def heartbeat(self, status: DriverStatus) -> Sequence[Directive]:
            if not finishing.wait(20):
                return ()
            refused.set()
            raise Fenced("Execution e1 is over.")

        def finish(self, failure: Failure | None) -> None:
            finishing.set()
            assert refused.wait(20)

    ended: list[EpochalError] = []
    with control_plane(Script([])) as url:
        client = HeartbeatingCatalog(Ending([url], "secret", "e1", 2), ended.append, interval_seconds=0.01)
        client.start()
        client.finish(None)
        client._thread.join(20)
    assert not client._thread.is_alive() and not ended and not caplog.records


def test_unknown_fields_in_answers_are_ignored() -> None:
    directive = {"id": "d1", "kind": "stop", "arguments": {}, "urgency": 2}
    with control_plane(Script([Reply(200, POINT), Reply(200, {"directives": [directive], "term": 7})])) as url:
        client = catalog(url)
        point = client.begin_attempt()
        (found,) = client.heartbeat(STATUS)

    assert (point.head, point.next_epoch, point.begun and point.begun.kind) == (MANIFEST, 5, "sideways")
    assert (found.id, found.kind) == ("d1", "stop")


@pytest.mark.parametrize(
    "unread", [{"id": "d1", "kind": "dance", "steps": 3}, {"id": "d1", "kind": "stop", "arguments": "quickly"}]
)
def test_an_unknown_directive_is_answered_with_a_failure(unread: dict[str, Any]) -> None:
    stop = {"id": "d2", "kind": "stop", "arguments": {}}
    script = Script([Reply(200, {"directives": [unread, stop]}), Reply()])
    with control_plane(script) as url:
        found = catalog(url).heartbeat(STATUS)

    assert [directive.id for directive in found] == ["d2"]
    method, path, body = script.asked[1]
    assert (method, path, body["head"], body["failure"]["type"]) == ("POST", "directives/d1", None, "unknown-directive")
    assert repr(unread["kind"]) in body["failure"]["message"]


def test_an_unreadable_answer_is_named() -> None:
    script = Script([Reply(200, {**POINT, "next_epoch": None})])
    with control_plane(script) as url, pytest.raises(UnreadableAnswer, match=r"RecoveryPoint.*next_epoch.*version"):
        catalog(url).begin_attempt()


def test_an_answer_that_is_not_json_is_named() -> None:
    with (
        control_plane(Script([Reply(200)])) as url,
        pytest.raises(UnreadableAnswer, match=r"/begin was not answered with JSON"),
    ):
        catalog(url).begin_attempt()


def test_repeated_unreadable_answers_to_heartbeats_end_the_driver(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[EpochalError] = []
    has_ended = threading.Event()

    def on_end(error: EpochalError) -> None:
        ended.append(error)
        has_ended.set()

    script = Script([Reply(200, {"directives": {"d1": "stop"}})])
    with control_plane(script) as url:
        client = HeartbeatingCatalog(catalog(url), on_end, interval_seconds=0.001)
        client.start()
        assert has_ended.wait(60)

    (error,) = ended
    assert isinstance(error, HeartbeatsFailed) and "directives" in error.message
    assert len(script.asked) == TOLERATED_FAILURES == len([record for record in caplog.records if record.exc_info])
    with pytest.raises(HeartbeatsFailed):
        client.open_epoch(4, None)


def test_occasional_failed_heartbeats_are_tolerated() -> None:
    unreadable, fine = Reply(200, []), Reply(200, {"directives": []})
    script = Script([*([unreadable] * (TOLERATED_FAILURES - 1) + [fine]) * 2, fine])
    ended: list[EpochalError] = []
    with control_plane(script) as url:
        client = HeartbeatingCatalog(catalog(url), ended.append, interval_seconds=0.001)
        client.start()
        while len(script.asked) < 2 * TOLERATED_FAILURES + 2:
            script.answered.clear()
            assert script.answered.wait(20)
        client.stop()

    assert not ended


NO_DIRECTIVES = Reply(200, {"directives": []})


def test_calls_continue_at_the_next_control_plane() -> None:
    first, second = Script([problem(503, "catalog-unavailable")]), Script([Reply()])
    with control_plane(first) as one, control_plane(second) as two:
        client = several(one, two)
        client.commit_epoch(4)
        client.commit_epoch(5)
    assert [path for _, path, _ in first.asked] == ["epochs/4/commit"]
    assert [path for _, path, _ in second.asked] == ["epochs/4/commit", "epochs/5/commit"]


def test_an_unreachable_control_plane_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "epochal.driver")
    script = Script([Reply()])
    with control_plane(script) as url:
        several(unreachable(), unreachable(), url).commit_epoch(4)
    assert len(script.asked) == 1
    assert not caplog.records  # nothing to report, because one control plane answered


def test_heartbeats_rotate_over_control_planes_and_update_their_list() -> None:
    first, second, third = Script([NO_DIRECTIVES]), Script([NO_DIRECTIVES]), Script([NO_DIRECTIVES])
    with control_plane(first) as one, control_plane(second) as two, control_plane(third) as three:
        client = several(one, two)
        for _ in range(3):
            client.heartbeat(STATUS)
        assert (len(first.asked), len(second.asked)) == (2, 1)

        second.replies = [Reply(200, {"directives": [], "control_planes": [two, three]})]
        client.heartbeat(STATUS)
        assert client.control_planes == (two, three)
        client.heartbeat(STATUS)
        client.commit_epoch(4)  # the previous control plane is no longer in the list
    assert (len(first.asked), len(third.asked)) == (2, 1)
    assert [path for _, path, _ in second.asked] == ["heartbeat", "heartbeat", "epochs/4/commit"]


def test_control_planes_that_a_list_omits_are_tried_after_the_others() -> None:
    """After an outage of its database, a control plane reports only itself, and may be the next to fail."""
    first, second = Script([NO_DIRECTIVES]), Script([NO_DIRECTIVES])
    with control_plane(first) as one, control_plane(second) as two:
        client = several(one, two)
        first.replies = [Reply(200, {"directives": [], "control_planes": [one]})]
        client.heartbeat(STATUS)
        client.heartbeat(STATUS)
        assert (len(first.asked), len(second.asked)) == (2, 0)  # heartbeats rotate over the list alone

        first.replies = [problem(503, "catalog-unavailable")]
        client.heartbeat(STATUS)
        client.commit_epoch(4)
    assert [path for _, path, _ in second.asked] == ["heartbeat", "epochs/4/commit"]


def test_a_control_plane_that_lists_omit_for_long_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("epochal.wire.http.time", type("Clock", (), {"monotonic": staticmethod(lambda: now)}))
    planes = ControlPlanes(["http://one", "http://two"])
    planes.replace(["http://one"])
    now = EARLIER_SECONDS - 1
    planes.replace(["http://one"])
    assert planes.next_to_try("http://one") == "http://two"

    now = EARLIER_SECONDS + 1
    planes.replace(["http://one"])
    assert (len(planes), planes.current, planes.next_to_try("http://one")) == (1, "http://one", "http://one")


def test_a_hanging_control_plane_delays_one_heartbeat_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_catalog, "HEARTBEAT_SECONDS", 0.05)
    script = Script([NO_DIRECTIVES])
    with socket.create_server(("127.0.0.1", 0)) as hanging, control_plane(script) as url:
        client = several(f"http://127.0.0.1:{hanging.getsockname()[1]}", url)
        client.heartbeat(STATUS)
        client.commit_epoch(4)
    assert [path for _, path, _ in script.asked] == ["heartbeat", "epochs/4/commit"]


def test_a_failing_heartbeat_tries_each_control_plane_once() -> None:
    first, second = Script([Reply(503)]), Script([Reply(500)])
    with (
        control_plane(first) as one,
        control_plane(second) as two,
        pytest.raises(CatalogUnavailable, match="heartbeat"),
    ):
        several(one, two).heartbeat(STATUS)
    assert (len(first.asked), len(second.asked)) == (1, 1)


def several(*urls: str) -> HttpCatalog:
    return HttpCatalog(urls, "secret", "e1", 2, patience_seconds=20)


def unreachable() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


RECORD = {
    "branch": "main",
    "epoch": 4,
    "attempt": 2,
    "started_at": "2024-05-01T12:00:00Z",
    "manifest": MANIFEST.model_dump(),
}


@pytest.mark.parametrize("current", [problem(404, "not-found"), Reply(200, RECORD | {"state": "started"})])
def test_a_catalog_that_lost_a_decision_halts_the_driver(current: Reply) -> None:
    script = Script([Reply(), problem(409, "conflict", "the branch's head is main/3"), current])
    with control_plane(script) as url:
        client = catalog(url)
        client.prepare_epoch(4, EpochKey("main", 3), MANIFEST, EpochCounts())
        with pytest.raises(CatalogWentBack, match=r"main/4 is decided.*synchronous replication"):
            client.open_epoch(5, EpochKey("main", 4))
    assert [path for _, path, _ in script.asked] == ["epochs/4/prepare", "epochs", "epochs/4"]
    assert permanent(failure_of(CatalogWentBack("x")))


def test_a_recovery_point_that_went_back_halts_the_driver() -> None:
    script = Script([Reply(200, POINT), Reply(200, POINT | {"head": None, "next_epoch": 1})])
    with control_plane(script) as url:
        client = catalog(url)
        client.begin_attempt()
        with pytest.raises(CatalogWentBack, match="now its head is none"):
            client.begin_attempt()


def test_a_conflict_with_an_intact_catalog_is_a_conflict() -> None:
    script = Script([Reply(), problem(409, "conflict"), Reply(200, RECORD | {"state": "prepared"})])
    with control_plane(script) as url:
        client = catalog(url)
        client.prepare_epoch(4, EpochKey("main", 3), MANIFEST, EpochCounts())
        with pytest.raises(Conflict):
            client.open_epoch(5, EpochKey("main", 3))
