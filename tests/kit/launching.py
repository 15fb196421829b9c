"""Contract suite of launchers, independent of how their drivers run. The tests of each launcher subclass it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from epochal.contracts.configuration import Configuration
from epochal.driver.orders import ArtifactOrder, DriverOrders
from epochal.service.domain.executions import DriverName
from epochal.service.runtime.launchers.base import Launcher, ProcessReference
from epochal.service.runtime.logs.files import last_lines, log_path
from tests.kit.waiting import eventually

EXECUTION = "e" * 32
SLEEP = "import time; print('up', flush=True); time.sleep(600)"
EXIT_ON_SIGTERM = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print('up', flush=True)
time.sleep(600)
"""


def orders_of(folder: Path, attempt: int, spark: dict[str, str] | None = None) -> DriverOrders:
    return DriverOrders(
        control_planes=("http://127.0.0.1:1",),
        token="secret-token",
        execution=EXECUTION,
        attempt=attempt,
        application="flights",
        artifact=ArtifactOrder(sha256="0" * 64, filename="pipeline.py"),
        configuration=Configuration(spark=spark or {}),
        store=str(folder / "store"),
        work_directory=folder / "work",
    )


@dataclass
class Launching:
    """Drivers of one test. Their programs are Python code.

    ``make``: creates an open launcher whose drivers run the given program. Each call creates another launcher, as a
    later control plane does.
    """

    make: Callable[[str], Launcher]
    orders: Callable[[int, str], DriverOrders]
    """Returns the orders of an attempt whose driver runs the given program."""
    logs: Path
    seconds: float = 60

    def log(self, attempt: int = 1) -> str:
        return last_lines(log_path(self.logs, "flights", EXECUTION, attempt), 100)

    def launch(self, program: str, attempt: int = 1) -> tuple[Launcher, ProcessReference]:
        """Launch a driver. It has started once it prints "up"."""
        launcher = self.make(program)
        return launcher, launcher.launch(self.orders(attempt, program))

    def up(self, launcher: Launcher, reference: ProcessReference, attempt: int = 1) -> None:
        def is_up() -> bool:
            launcher.bring_log(reference)
            return launcher.alive(reference) and "up" in self.log(attempt)

        eventually(is_up, self.seconds)

    def ended(self, launcher: Launcher, reference: ProcessReference) -> int | None:
        eventually(lambda: not launcher.alive(reference), self.seconds)
        launcher.bring_log(reference)
        return launcher.exit_code(reference)


class LauncherContract:
    """Contract tests of a launcher. A subclass defines the fixture ``launching``."""

    def test_driver_reports_its_exit_code_and_log(self, launching: Launching) -> None:
        launcher, reference = launching.launch("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
        assert launching.ended(launcher, reference) == 3
        launcher.explain(reference)  # waits for the end of the log
        assert sorted(launching.log().split()) == ["err", "out"]

    def test_driver_is_launched_once_and_found_by_name(self, launching: Launching) -> None:
        launcher, reference = launching.launch(SLEEP)
        launching.up(launcher, reference)
        assert launcher.launch(launching.orders(1, SLEEP)) == reference
        successor = launching.make(SLEEP)
        assert successor.drivers()[DriverName(EXECUTION, 1)] == reference
        assert successor.launch(launching.orders(1, SLEEP)) == reference
        assert successor.alive(ProcessReference.parse(str(reference)))
        successor.terminate(reference, kill=True)
        eventually(lambda: not launcher.alive(reference), launching.seconds)

    def test_driver_can_be_terminated_gracefully(self, launching: Launching) -> None:
        launcher, reference = launching.launch(EXIT_ON_SIGTERM)
        launching.up(launcher, reference)
        launcher.terminate(reference, kill=False)
        assert launching.ended(launcher, reference) == 7

    def test_killed_driver_is_no_longer_listed(self, launching: Launching) -> None:
        launcher, reference = launching.launch("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP)
        launching.up(launcher, reference)
        launcher.terminate(reference, kill=True)
        assert launching.ended(launcher, reference) == -9

        def has_terminated() -> bool:
            launcher.terminate(reference, kill=True)  # supervision repeats this call from time to time
            return DriverName(EXECUTION, 1) not in launcher.drivers()

        eventually(has_terminated, launching.seconds)
        launcher.terminate(reference, kill=True)
        assert not launcher.alive(reference)

    def test_drivers_are_terminated_independently(self, launching: Launching) -> None:
        launcher, first = launching.launch(SLEEP)
        launching.up(launcher, first)
        second = launcher.launch(launching.orders(2, SLEEP))
        launching.up(launcher, second, 2)
        assert first != second
        launcher.terminate(first, kill=True)
        eventually(lambda: not launcher.alive(first), launching.seconds)
        assert launcher.alive(second)
        launcher.terminate(second, kill=True)
        eventually(lambda: not launcher.alive(second), launching.seconds)

    def test_end_of_a_driver_notifies_every_launcher(self, launching: Launching) -> None:
        launcher, reference = launching.launch(SLEEP)
        launching.up(launcher, reference)
        launchers = [launcher, launching.make(SLEEP)]
        notified = [threading.Event() for _ in launchers]
        for each, event in zip(launchers, notified, strict=True):
            each.tell_of_ends(event.set)
            assert each.alive(reference)
        launcher.terminate(reference, kill=True)
        for each, event in zip(launchers, notified, strict=True):
            assert event.wait(launching.seconds)
            eventually(lambda each=each: not each.alive(reference), launching.seconds)  # type: ignore[misc]
