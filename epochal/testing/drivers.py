"""Drivers as processes that tests kill: each is the command ``epochal run``, with faults planned at exact steps.

A driver's Python process is what runs the protocol; a JVM and the imports take most of its start. :class:`SparkJvm` is
a JVM that outlives the drivers that use it one after the other, :func:`driver_server` forks drivers with their imports
done, so that dozens of deaths cost seconds, not minutes. What is killed is a driver's process in either case.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pyspark.java_gateway import launch_gateway

from epochal.contracts.configuration import Parameters
from epochal.engine.session import java_options
from epochal.faults import ENVIRONMENT, SWITCH, Fault
from epochal.testing.fork_server import ForkedProcess, ForkServer

COMMAND_LINE = "epochal.cli.main"
IMPORTED = (COMMAND_LINE, "epochal.cli.local_run", "pyspark.sql.session", "pyspark.sql.streaming.query")
TASK_THREADS = "Executor task launch worker"
TASKS_END_SECONDS = 30.0
COMMAND = (sys.executable, "-c", f"from {__name__} import main; main()")


def main() -> None:
    """The command ``epochal``, but with the engine's log, which a test that fails wants to show."""
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    command: Callable[[], None] = import_module(COMMAND_LINE).main
    command()


def driver_server(*imports: str) -> ForkServer | None:
    """A server that forks drivers, with further ``imports`` for other processes that are forked from it.

    ``None`` where a process cannot know that it is safe to fork (no ``/proc``). Raises ``EnvironmentProblem``.
    """
    return ForkServer([__name__, *IMPORTED, *imports]) if Path("/proc/self/task").is_dir() else None


class SparkJvm:
    """A JVM without a Spark context, for drivers that come one after the other.

    Spark allows one context per JVM. That of a driver that was killed lives on, with its running tasks and its Python
    workers, as executors do when they lose their driver; :meth:`end_context` ends it.
    """

    def __init__(self, memory: str = "1g") -> None:
        self._memory = memory
        self._launch()

    def _launch(self) -> None:
        # Asked for through the environment: pyspark's launcher takes no other way, and reads it once.
        arguments = (
            f"--driver-memory {self._memory} --conf spark.ui.enabled=false "
            f"--driver-java-options {shlex.quote(java_options({}))} pyspark-shell"
        )
        with _environment({"PYSPARK_SUBMIT_ARGS": arguments, "SPARK_LOCAL_IP": "127.0.0.1"}):
            launch: Callable[..., Any] = launch_gateway
            self._gateway = launch(popen_kwargs={"stderr": subprocess.DEVNULL})

    @property
    def environment(self) -> dict[str, str]:
        """What a driver needs in its environment to use this JVM."""
        parameters = self._gateway.java_parameters
        return {"PYSPARK_GATEWAY_PORT": str(parameters.port), "PYSPARK_GATEWAY_SECRET": parameters.auth_token}

    def end_context(self) -> None:
        """End the Spark context of a driver that is gone, and all that still runs in it."""
        # Not the session: a driver may have been killed after it made the context and before it made that.
        context = getattr(getattr(self._gateway.jvm.org.apache.spark, "SparkContext$"), "MODULE$").getActive()
        if context.isDefined():
            context.get().stop()
        self._await_tasks()

    def _await_tasks(self) -> None:
        """Tasks outlive their context, and Spark's environment is the JVM's: what they shuffle would become the next
        context's, under the same numbers. A JVM whose tasks do not end is left for another."""
        threads = self._gateway.jvm.java.lang.Thread
        deadline = time.monotonic() + TASKS_END_SECONDS
        while any(thread.getName().startswith(TASK_THREADS) for thread in threads.getAllStackTraces().keySet()):
            if time.monotonic() > deadline:
                self._end()
                self._launch()
                return
            time.sleep(0.05)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        self._gateway.shutdown()
        self._gateway.proc.stdin.close()  # the JVM ends with it
        try:
            self._gateway.proc.wait(10)
        except subprocess.TimeoutExpired:
            self._gateway.proc.kill()


@dataclass(frozen=True)
class DriverPlan:
    """What to run, where, and what shall go wrong. ``faults`` in the driver, ``task_faults`` in its tasks."""

    pipeline: Path
    directory: Path
    parameters: Parameters = field(default_factory=dict)
    configuration: Mapping[str, Any] = field(default_factory=dict)
    epochs: int | None = None
    faults: Sequence[Fault] = ()
    task_faults: Sequence[Fault] = ()

    def arguments(self) -> list[str]:
        settings = dict(self.configuration)
        if self.task_faults:
            settings |= {
                f"spark.executorEnv.{ENVIRONMENT}": encoded(self.task_faults),
                f"spark.executorEnv.{SWITCH}": "1",
            }
        # A successor may start while a driver that was paused still holds the directory.
        command = [str(self.pipeline), "--json", "--directory", str(self.directory), "--take-over"]
        command += [f"--epochs={self.epochs}"] if self.epochs is not None else []
        for name, value in self.parameters.items():
            command += ["--parameter", f"{name}={value}"]
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        return command


class WatchedProcess:
    """A process that a test follows, pauses and kills; ``log`` has what it prints."""

    def __init__(self, process: subprocess.Popen[bytes] | ForkedProcess, log: Path) -> None:
        self._process = process
        self.log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait(self, seconds: float = 600) -> int:
        """Its exit code, negative for a signal. Killed, with all it started, and an error when it does not end."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"it did not end within {seconds} s: {self.log_end()}") from None

    def wait_until(self, reached: Callable[[], bool], seconds: float = 600) -> None:
        """Return once ``reached()`` holds. An error when the driver ends before, or it takes too long."""
        deadline = time.monotonic() + seconds
        while True:
            began = time.monotonic()
            if reached():
                return
            now = time.monotonic()
            if not self.running or now > deadline:
                state = "runs still" if self.running else f"has ended with {self._process.returncode}"
                raise AssertionError(f"what was waited for did not come; it {state}: {self.log_end()}")
            time.sleep(max(0.05, 4 * (now - began)))  # to look must not take the time of what is waited for

    def wait_until_stopped(self) -> None:
        """Return once it is stopped (SIGSTOP)."""
        self.wait_until(lambda: Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL to it and to whatever it started itself. Safe to call again."""
        started = self.children()  # its JVM has a process group of its own
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for process in started:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._process.wait()

    def children(self) -> list[int]:
        """The ids of the processes that it started, its JVM among them, where the system lists them; else none."""
        if self._process.poll() is not None:
            return []
        lists = Path(f"/proc/{self._process.pid}/task").glob("*/children")
        return [int(process) for children in lists for process in children.read_text().split()]

    def log_end(self, characters: int = 3000) -> str:
        return self.log.read_text(errors="replace")[-characters:]


class DriverProcess(WatchedProcess):
    """A running driver. ``jvm`` ``None``: it starts its own, which ends with it. ``server`` ``None``: it is no fork."""

    def __init__(
        self, plan: DriverPlan, log: Path, jvm: SparkJvm | None = None, server: ForkServer | None = None
    ) -> None:
        environment = without_faults(os.environ) | {"EPOCHAL_DEBUG": "1"}
        environment |= jvm.environment if jvm is not None else {}
        environment |= planned(plan.faults)
        command = ["run", *plan.arguments()]
        if server is not None:
            super().__init__(server.start(__name__, command, environment, log), log)
            return
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*COMMAND, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        super().__init__(process, log)


def without_faults(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process in which nothing is planned to go wrong."""
    return {name: value for name, value in environment.items() if name != ENVIRONMENT}


def planned(faults: Sequence[Fault]) -> dict[str, str]:
    """What the environment of a process has more in which these faults are to happen; nothing without any."""
    return {ENVIRONMENT: encoded(faults), SWITCH: "1"} if faults else {}


def encoded(faults: Sequence[Fault]) -> str:
    """Faults as a process reads them from its environment."""
    return json.dumps([asdict(fault) for fault in faults])


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Variables of this process, for the length of the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
