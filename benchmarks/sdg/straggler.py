"""Scale-out and a straggler over time (figure 10 of the paper), on a control plane with autoscaling.

An application with one subtask reads a steady stream of rows. It is busy nearly all the time, so that the autoscaler
adds a second subtask, and it catches up. Then one of the two becomes slow, as on a less powerful machine, and is
reported as a straggler. When the lag has grown, the autoscaler adds subtasks, so that the slow one has fewer keys.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figure import Figure, Moment
from benchmarks.running import head, running_control_plane, wait_for
from benchmarks.sdg.timeline import Count, Timeline, lag
from epochal.client import Client
from epochal.client.applications import ApplicationHandle

ARTIFACT = Path(__file__).with_name("waiting.py")
NAME = "waiting"
GREATEST, SLOW_SUBTASK = 4, 1
FILES = 15
"""Maximum number of files of an epoch, each with the rows of one second."""
PAUSE_SECONDS = 1.0


@dataclass(frozen=True)
class Sizes:
    """``rate``: rows a second, each of which waits ``row_seconds``. One subtask is busy nearly all the time; two do not
    keep up if one is slower by ``factor``; four do. ``steady_seconds``: time without lag before the next step.
    ``caught_up_seconds``: maximum lag that counts as none, at least the time of an epoch. ``lag_seconds`` and
    ``cool_down_seconds`` are settings of the autoscaling policy."""

    rate: int
    row_seconds: float
    factor: float
    steady_seconds: float
    caught_up_seconds: float
    lag_seconds: float
    cool_down_seconds: float


FULL = Sizes(45, 0.02, 3, 20, 5, 10, 45)
QUICK = Sizes(45, 0.02, 3, 1, 30, 6, 30)


class Input:
    """Writes a file of ``rate`` rows, and after ``flow`` one each second until the end of the ``with`` block."""

    def __init__(self, folder: Path, rate: int) -> None:
        self.folder = folder
        self.arrivals: list[Count] = []
        self._rate = rate
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._feed)

    def __enter__(self) -> Input:
        self.folder.mkdir(parents=True)
        self._write()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def flow(self) -> None:
        self._thread.start()

    def _feed(self) -> None:
        started, files = time.monotonic(), 0
        while not self._ended.wait(max(0.0, started + files - time.monotonic())):
            self._write()
            files += 1

    def _write(self) -> None:
        first = self.arrivals[-1].rows if self.arrivals else 0
        hidden = self.folder / f".{first}"
        events = range(first, first + self._rate)
        hidden.write_text("".join(json.dumps({"event": event}) + "\n" for event in events))
        hidden.rename(self.folder / f"{first:08}.json")
        self.arrivals.append(Count(time.time(), events.stop))


def straggler(folder: Path, quick: bool) -> Figure:
    sizes = QUICK if quick else FULL
    with running_control_plane(folder / "plane") as (_, client), Input(folder / "input", sizes.rate) as input:
        application = _submitted(client, folder, sizes)
        wait_for(lambda: head(application) > 0, "the first epoch", PAUSE_SECONDS)
        input.flow()
        moments = _watched(application, input, folder / "slow", sizes)
        timeline = _timeline(application, input)
    return Figure(
        "sdg-straggler",
        "A straggler, and more subtasks by autoscaling",
        "time since the first epoch began, s",
        False,
        timeline.panels(),
        f"{sizes.rate} rows a second arrive at an application that begins with one subtask. Each row waits for\n"
        f"{sizes.row_seconds * 1000:g} ms, as for the answer of a service, so that subtasks do not share the cores of "
        f"one machine; later subtask\n{SLOW_SUBTASK} waits {sizes.factor:g} times as long, as on a slower machine. "
        f"Autoscaling adds subtasks if they were busy for 70 % of ten\nseconds, or the lag was more than "
        f"{sizes.lag_seconds:g} s, to {GREATEST} subtasks at most. It counts time and lag in samples of ten\n"
        f"seconds, and waits for {sizes.cool_down_seconds:g} s after a start or a change. A straggler is detected by "
        "the work of the last minute.\nOn one machine it is only reported: the autoscaler adds subtasks because of "
        "busy time or lag. In figure\n10 of the paper the runtime starts a new instance that shares the straggler's "
        "work.",
        timeline.moments(moments),
    )


def _submitted(client: Client, folder: Path, sizes: Sizes) -> ApplicationHandle:
    artifact = client.artifacts.upload(ARTIFACT).sha256
    parameters = {
        "input": str(folder / "input"),
        "files": FILES,
        "slow": str(folder / "slow"),
        "slow_subtask": SLOW_SUBTASK,
        "factor": sizes.factor,
        "row_seconds": sizes.row_seconds,
    }
    configuration = {
        "parallelism": 1,
        "epoch_interval_seconds": 0.5,
        "master": f"local[{GREATEST}]",
        "autoscaling": {
            "greatest": GREATEST,
            "target_busy_share": 0.3,
            "lag_seconds": sizes.lag_seconds,
            "grow_after_seconds": 10,
            "cool_down_seconds": sizes.cool_down_seconds,
        },
    }
    client.applications.create(NAME, artifact, parameters=parameters, configuration=configuration)
    return client.application(NAME)


def _watched(application: ApplicationHandle, input: Input, slow: Path, sizes: Sizes) -> list[Moment]:
    """Run all steps. Raises ``EpochalError`` if an expected change does not occur."""

    def subtasks() -> int:
        return ([1] + [count for _, count in _timeline(application, input).rescaled])[-1]

    def has_caught_up() -> bool:
        taken = sum(record.rows_in or 0 for record in _timeline(application, input).epochs)
        return lag(input.arrivals, taken, time.time()) < sizes.caught_up_seconds

    wait_for(lambda: subtasks() > 1, "a second subtask", PAUSE_SECONDS)
    wait_for(has_caught_up, "two subtasks to catch up", PAUSE_SECONDS)
    time.sleep(sizes.steady_seconds)
    slow.touch()
    moments = [Moment(time.time(), f"subtask {SLOW_SUBTASK} becomes slow, by {sizes.factor:g} times")]
    wait_for(lambda: _is_named(application), "the straggler to be named", PAUSE_SECONDS)
    moments.append(Moment(time.time(), f"subtask {SLOW_SUBTASK} is named a straggler"))
    wait_for(lambda: subtasks() == GREATEST, f"{GREATEST} subtasks", PAUSE_SECONDS)
    wait_for(has_caught_up, f"{GREATEST} subtasks to catch up", PAUSE_SECONDS)
    time.sleep(sizes.steady_seconds)
    return moments


def _is_named(application: ApplicationHandle) -> bool:
    operator = application.load().operators.get(NAME)
    return operator is not None and any(found.subtask == SLOW_SUBTASK for found in operator.stragglers)


def _timeline(application: ApplicationHandle, input: Input) -> Timeline:
    epochs = sorted(application.epochs.list(None, "committed"), key=lambda record: record.epoch)
    return Timeline(list(input.arrivals), epochs, subtasks=1)
