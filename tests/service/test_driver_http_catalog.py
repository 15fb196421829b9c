"""The driver's catalog over a real socket, with a control plane that loses answers, goes away, and comes back."""

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
from tests.service.scripted_control_plane import MANIFEST, POINT, Reply, Script, control_plane, problem

RUNNING = DriverStatus(phase="running", epoch=3)


def catalog(url: str, patience: float | None = 20.0) -> HttpCatalog:
    return HttpCatalog([url], "secret", "e1", 2, patience_seconds=patience)


CALLS: list[tuple[Callable[[HttpCatalog], Any], tuple[str, str, Any]]] = [
    (
        lambda it: it.open_epoch(4, EpochKey("main", 3)),
        ("POST", "epochs", {"epoch": 4, "parent": {"branch": "main", "epoch": 3}}),
    ),
    (
        lambda it: it.prepare_epoch(4, None, MANIFEST, EpochCounts(rows_in=7)),
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
    (lambda it: it.commit_epoch(4), ("POST", "epochs/4/commit", None)),
    (
        lambda it: it.abort_epoch(4, Failure(type="source-error", message="gone")),
        (
            "POST",
            "epochs/4/abort",
            {"failure": {"type": "source-error", "message": "gone", "step": None, "traceback": None}},
        ),
    ),
    (
        lambda it: it.complete("d1", MANIFEST),
        ("POST", "directives/d1", {"head": MANIFEST.model_dump(), "failure": None}),
    ),
    (lambda it: it.finish(None), ("POST", "finish", {"failure": None})),
]


@pytest.mark.parametrize(("call", "expected"), CALLS, ids=[expected[1] for _, expected in CALLS])
def test_an_answer_that_is_lost_is_asked_for_again(
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
def test_a_problem_comes_back_as_the_error_that_it_was_made_from(reply: Reply, error: type[EpochalError]) -> None:
    script = Script([reply])
    with control_plane(script) as url, pytest.raises(error) as raised:
        catalog(url).commit_epoch(4)
    assert type(raised.value) is error
    assert len(script.asked) == 1
    if error is Fenced:
        assert raised.value.message == "attempt 3 owns the branch"


@pytest.mark.parametrize("slug", ["outcome-unknown", "catalog-unavailable", "catalog-full"])
def test_what_the_control_plane_does_not_know_is_asked_again(slug: str) -> None:
    script = Script([problem(503, slug), Reply()])
    with control_plane(script) as url:
        catalog(url).commit_epoch(4)
    assert len(script.asked) == 2


def test_a_control_plane_that_is_away_is_waited_for_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    it = catalog(f"http://127.0.0.1:{port}", patience=None)
    caplog.set_level(logging.WARNING, "epochal.driver")
    done = threading.Event()

    def commit() -> None:
        it.commit_epoch(4)
        done.set()

    thread = threading.Thread(target=commit, daemon=True)
    thread.start()
    assert not done.wait(0.6)
    with control_plane(Script([Reply()]), port):
        assert done.wait(20)
    thread.join()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and "away" in said[0] and "back" in said[1]


def test_patience_with_a_full_disk_ends_with_what_the_control_plane_said() -> None:
    script = Script([problem(503, "catalog-full", "No space is left.")])
    with control_plane(script) as url, pytest.raises(CatalogFull, match="No space is left"):
        catalog(url, patience=0.3).commit_epoch(4)


def test_patience_ends_with_a_sentence() -> None:
    with pytest.raises(CatalogUnavailable, match="Is it up"):
        catalog("http://127.0.0.1:9", patience=0.3).commit_epoch(4)


def test_an_epoch_that_is_not_there_is_none() -> None:
    with control_plane(Script([problem(404, "not-found")])) as url:
        assert catalog(url).epoch(9) is None


def test_heartbeats_go_on_while_the_epoch_loop_is_busy_and_directives_wait_for_it() -> None:
    stop = {"id": "d1", "kind": "stop", "arguments": {}}
    script = Script([Reply(200, {"directives": [stop]})])
    with control_plane(script) as url:
        it = HeartbeatingCatalog(catalog(url), lambda _error: None, interval_seconds=0.01)
        it.start()
        while len(script.asked) < 5:
            assert script.answered.wait(20)
        (directive,) = it.heartbeat(RUNNING)
        assert directive.kind == "stop"
        script.replies = [Reply(200, {"directives": []})]
        it.complete("d1", None)
        assert it.heartbeat(RUNNING) == ()
        while ("POST", "heartbeat", RUNNING.model_dump(mode="json")) not in script.asked:
            script.answered.clear()
            assert script.answered.wait(20)
        it.stop()


def test_a_fenced_heartbeat_ends_everything() -> None:
    ended = threading.Event()
    with control_plane(Script([problem(409, "fenced")])) as url:
        it = HeartbeatingCatalog(catalog(url), lambda _error: ended.set(), interval_seconds=0.01)
        it.start()
        assert ended.wait(20)
        with pytest.raises(Fenced):
            it.open_epoch(4, None)
        with pytest.raises(Fenced):
            it.heartbeat(RUNNING)


def test_a_heartbeat_while_the_driver_says_that_it_has_finished_does_not_fence_it(
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
        it = HeartbeatingCatalog(Ending([url], "secret", "e1", 2), ended.append, interval_seconds=0.01)
        it.start()
        it.finish(None)
        it._thread.join(20)
    assert not it._thread.is_alive() and not ended and not caplog.records


def test_fields_that_a_later_control_plane_adds_to_its_answers_are_ignored() -> None:
    directive = {"id": "d1", "kind": "stop", "arguments": {}, "urgency": 2}
    with control_plane(Script([Reply(200, POINT), Reply(200, {"directives": [directive], "term": 7})])) as url:
        it = catalog(url)
        point = it.begin_attempt()
        (found,) = it.heartbeat(RUNNING)

    assert (point.head, point.next_epoch, point.begun and point.begun.kind) == (MANIFEST, 5, "sideways")
    assert (found.id, found.kind) == ("d1", "stop")


@pytest.mark.parametrize(
    "new", [{"id": "d1", "kind": "dance", "steps": 3}, {"id": "d1", "kind": "stop", "arguments": "quickly"}]
)
def test_a_directive_that_the_driver_does_not_know_is_answered_with_a_failure(new: dict[str, Any]) -> None:
    stop = {"id": "d2", "kind": "stop", "arguments": {}}
    script = Script([Reply(200, {"directives": [new, stop]}), Reply()])
    with control_plane(script) as url:
        found = catalog(url).heartbeat(RUNNING)

    assert [directive.id for directive in found] == ["d2"]
    method, path, body = script.asked[1]
    assert (method, path, body["head"], body["failure"]["type"]) == ("POST", "directives/d1", None, "unknown-directive")
    assert repr(new["kind"]) in body["failure"]["message"]


def test_an_answer_that_cannot_be_read_is_named() -> None:
    script = Script([Reply(200, {**POINT, "next_epoch": None})])
    with control_plane(script) as url, pytest.raises(UnreadableAnswer, match=r"RecoveryPoint.*next_epoch.*version"):
        catalog(url).begin_attempt()


def test_an_answer_that_is_no_json_is_named() -> None:
    with control_plane(Script([Reply(200)])) as url, pytest.raises(UnreadableAnswer, match=r"/begin was .*no JSON"):
        catalog(url).begin_attempt()


def test_heartbeats_whose_answers_cannot_be_read_end_the_driver_and_say_why(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[EpochalError] = []
    over = threading.Event()

    def on_end(error: EpochalError) -> None:
        ended.append(error)
        over.set()

    script = Script([Reply(200, {"directives": {"d1": "stop"}})])
    with control_plane(script) as url:
        it = HeartbeatingCatalog(catalog(url), on_end, interval_seconds=0.001)
        it.start()
        assert over.wait(60)

    (error,) = ended
    assert isinstance(error, HeartbeatsFailed) and "directives" in error.message
    assert len(script.asked) == TOLERATED_FAILURES == len([it for it in caplog.records if it.exc_info])
    with pytest.raises(HeartbeatsFailed):
        it.open_epoch(4, None)


def test_a_heartbeat_that_fails_now_and_then_ends_nothing() -> None:
    unreadable, fine = Reply(200, []), Reply(200, {"directives": []})
    script = Script([*([unreadable] * (TOLERATED_FAILURES - 1) + [fine]) * 2, fine])
    ended: list[EpochalError] = []
    with control_plane(script) as url:
        it = HeartbeatingCatalog(catalog(url), ended.append, interval_seconds=0.001)
        it.start()
        while len(script.asked) < 2 * TOLERATED_FAILURES + 2:
            script.answered.clear()
            assert script.answered.wait(20)
        it.stop()

    assert not ended


HEARD = Reply(200, {"directives": []})


def test_a_call_goes_on_with_the_next_control_plane_and_stays_there() -> None:
    first, second = Script([problem(503, "catalog-unavailable")]), Script([Reply()])
    with control_plane(first) as one, control_plane(second) as two:
        it = several(one, two)
        it.commit_epoch(4)
        it.commit_epoch(5)
    assert [path for _, path, _ in first.asked] == ["epochs/4/commit"]
    assert [path for _, path, _ in second.asked] == ["epochs/4/commit", "epochs/5/commit"]


def test_a_control_plane_that_is_gone_costs_a_call_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "epochal.driver")
    script = Script([Reply()])
    with control_plane(script) as url:
        several(nobody(), nobody(), url).commit_epoch(4)
    assert len(script.asked) == 1
    assert not caplog.records  # one of them answered


def test_heartbeats_go_round_and_bring_the_list() -> None:
    first, second, third = Script([HEARD]), Script([HEARD]), Script([HEARD])
    with control_plane(first) as one, control_plane(second) as two, control_plane(third) as three:
        it = several(one, two)
        for _ in range(3):
            it.heartbeat(RUNNING)
        assert (len(first.asked), len(second.asked)) == (2, 1)

        second.replies = [Reply(200, {"directives": [], "control_planes": [two, three]})]
        it.heartbeat(RUNNING)
        assert it.control_planes == (two, three)
        it.heartbeat(RUNNING)
        it.commit_epoch(4)  # the one that was asked so far is not in the list any more
    assert (len(first.asked), len(third.asked)) == (2, 1)
    assert [path for _, path, _ in second.asked] == ["heartbeat", "heartbeat", "epochs/4/commit"]


def test_a_control_plane_that_hangs_costs_a_heartbeat_its_time_and_the_next_call_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_catalog, "HEARTBEAT_SECONDS", 0.05)
    script = Script([HEARD])
    with socket.create_server(("127.0.0.1", 0)) as hanging, control_plane(script) as url:
        it = several(f"http://127.0.0.1:{hanging.getsockname()[1]}", url)
        it.heartbeat(RUNNING)
        it.commit_epoch(4)
    assert [path for _, path, _ in script.asked] == ["heartbeat", "epochs/4/commit"]


def test_a_heartbeat_that_nobody_answers_asks_each_once() -> None:
    first, second = Script([Reply(503)]), Script([Reply(500)])
    with (
        control_plane(first) as one,
        control_plane(second) as two,
        pytest.raises(CatalogUnavailable, match="heartbeat"),
    ):
        several(one, two).heartbeat(RUNNING)
    assert (len(first.asked), len(second.asked)) == (1, 1)


def several(*urls: str) -> HttpCatalog:
    return HttpCatalog(urls, "secret", "e1", 2, patience_seconds=20)


def nobody() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


RECORD = {
    "branch": "main",
    "epoch": 4,
    "attempt": 2,
    "started_at": "2024-05-01T12:00:00Z",
    "manifest": MANIFEST.model_dump(),
}


@pytest.mark.parametrize("now", [problem(404, "not-found"), Reply(200, RECORD | {"state": "started"})])
def test_a_catalog_that_knows_less_than_it_did_halts_the_driver(now: Reply) -> None:
    script = Script([Reply(), problem(409, "conflict", "the branch's head is main/3"), now])
    with control_plane(script) as url:
        it = catalog(url)
        it.prepare_epoch(4, EpochKey("main", 3), MANIFEST, EpochCounts())
        with pytest.raises(CatalogWentBack, match=r"main/4 is decided.*synchronous replication"):
            it.open_epoch(5, EpochKey("main", 4))
    assert [path for _, path, _ in script.asked] == ["epochs/4/prepare", "epochs", "epochs/4"]
    assert permanent(failure_of(CatalogWentBack("x")))


def test_an_attempt_that_begins_again_behind_itself_halts() -> None:
    script = Script([Reply(200, POINT), Reply(200, POINT | {"head": None, "next_epoch": 1})])
    with control_plane(script) as url:
        it = catalog(url)
        it.begin_attempt()
        with pytest.raises(CatalogWentBack, match="now its head is none"):
            it.begin_attempt()


def test_a_conflict_with_a_catalog_that_knows_all_is_a_conflict() -> None:
    script = Script([Reply(), problem(409, "conflict"), Reply(200, RECORD | {"state": "prepared"})])
    with control_plane(script) as url:
        it = catalog(url)
        it.prepare_epoch(4, EpochKey("main", 3), MANIFEST, EpochCounts())
        with pytest.raises(Conflict):
            it.open_epoch(5, EpochKey("main", 3))
