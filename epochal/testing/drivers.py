"""Drivers as processes that tests kill: each is the command ``epochal run``, with faults planned at exact steps.

The Python process of a driver runs the protocol; most of its start-up time is the JVM and imports. :class:`SparkJvm` is
a JVM that consecutive drivers share, and :func:`driver_server` forks drivers after the imports, so that dozens of kills
take seconds instead of minutes. In both cases a test kills a real driver process.
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


def command_of(program: str) -> list[str]:
    """Command that runs ``main()`` of a module."""
    return [sys.executable, "-c", f"from {program} import main; main()"]


def main() -> None:
    """The command ``epochal`` with the log of the engine, for the output of failed tests."""
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    command: Callable[[], None] = import_module(COMMAND_LINE).main
    command()


def driver_server(*imports: str) -> ForkServer | None:
    """A server that forks drivers. ``imports``: further modules, for other forked processes.

    Returns ``None`` if a safe fork cannot be verified (no ``/proc``). Raises ``EnvironmentProblem``.
    """
    return ForkServer([__name__, *IMPORTED, *imports]) if Path("/proc/self/task").is_dir() else None


class SparkJvm:
    """A JVM without a Spark context, for consecutive drivers.

    Spark allows one context per JVM. The context of a killed driver continues, with its running tasks and its Python
    workers, like executors that lose their driver. :meth:`end_context` stops it.
    """

    def __init__(self, memory: str = "1g") -> None:
        self._memory = memory
        self._launch()

    def _launch(self) -> None:
        # pyspark's launcher only reads these options from the environment, once.
        arguments = (
            f"--driver-memory {self._memory} --conf spark.ui.enabled=false "
            f"--driver-java-options {shlex.quote(java_options({}))} pyspark-shell"
        )
        with _environment({"PYSPARK_SUBMIT_ARGS": arguments, "SPARK_LOCAL_IP": "127.0.0.1"}):
            launch: Callable[..., Any] = launch_gateway
            self._gateway = launch(popen_kwargs={"stderr": subprocess.DEVNULL})

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables with which a driver uses this JVM."""
        parameters = self._gateway.java_parameters
        return {"PYSPARK_GATEWAY_PORT": str(parameters.port), "PYSPARK_GATEWAY_SECRET": parameters.auth_token}

    def end_context(self) -> None:
        """Stop the Spark context of a terminated driver, and everything that runs in it."""
        # Not the session: the driver can have been killed between the creation of the context and of the session.
        context = getattr(getattr(self._gateway.jvm.org.apache.spark, "SparkContext$"), "MODULE$").getActive()
        if context.isDefined():
            context.get().stop()
        self._await_tasks()

    def _await_tasks(self) -> None:
        """Wait for running tasks. They outlive their context but share Spark's environment, so that their shuffle
        output would collide with the next context. If tasks do not end, a new JVM is used."""
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
    """The pipeline, its settings, and the planned faults: ``faults`` in the driver, ``task_faults`` in its tasks."""

    pipeline: Path
    directory: Path
    parameters: Parameters = field(default_factory=dict)
    configuration: Mapping[str, Any] = field(default_factory=dict)
    epochs: int | None = None
    faults: Sequence[Fault] = ()
    task_faults: Sequence[Fault] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    """Further environment variables of the driver."""
    program: str = __name__
    """Module whose ``main()`` runs; its arguments are those of ``epochal``."""

    def arguments(self) -> list[str]:
        settings = dict(self.configuration)
        if self.task_faults:
            settings |= {
                f"spark.executorEnv.{ENVIRONMENT}": encoded(self.task_faults),
                f"spark.executorEnv.{SWITCH}": "1",
            }
        # A successor can start while a paused driver still uses the directory.
        command = [str(self.pipeline), "--json", "--directory", str(self.directory), "--take-over"]
        command += [f"--epochs={self.epochs}"] if self.epochs is not None else []
        for name, value in self.parameters.items():
            command += ["--parameter", f"{name}={value}"]
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        return command


class WatchedProcess:
    """A process that a test observes, pauses and kills; ``log`` has its output."""

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
        """Wait for the end. Returns the exit code, negative for a signal. After a timeout, the process and its children
        are killed, and an error is raised."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"it did not end within {seconds} s: {self.log_end()}") from None

    def wait_until(self, reached: Callable[[], bool], seconds: float = 600) -> None:
        """Wait until ``reached()`` is true. Raises an error if the driver ends first, or after a timeout."""
        deadline = time.monotonic() + seconds
        while True:
            began = time.monotonic()
            if reached():
                return
            now = time.monotonic()
            if not self.running or now > deadline:
                state = "runs still" if self.running else f"has ended with {self._process.returncode}"
                raise AssertionError(f"the expected state was not reached; it {state}: {self.log_end()}")
            time.sleep(max(0.05, 4 * (now - began)))  # polling must not slow down the driver

    def wait_until_stopped(self) -> None:
        """Wait until the process is stopped (SIGSTOP)."""
        self.wait_until(self._is_stopped)

    def _is_stopped(self) -> bool:
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        except FileNotFoundError:
            return False  # it has ended, which wait_until reports with its log

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL to the process and its children. Repeated calls have no effect."""
        started = self.children()  # its JVM has a separate process group
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for process in started:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._process.wait()

    def children(self) -> list[int]:
        """The ids of its child processes, including its JVM, if the system lists them."""
        if self._process.poll() is not None:
            return []
        lists = Path(f"/proc/{self._process.pid}/task").glob("*/children")
        return [int(process) for children in lists for process in children.read_text().split()]

    def log_end(self, characters: int = 3000) -> str:
        return self.log.read_text(errors="replace")[-characters:]


class DriverProcess(WatchedProcess):
    """A running driver. ``jvm`` ``None``: it starts its own JVM. ``server`` ``None``: it is not forked."""

    def __init__(
        self, plan: DriverPlan, log: Path, jvm: SparkJvm | None = None, server: ForkServer | None = None
    ) -> None:
        environment = without_faults(os.environ) | {"EPOCHAL_DEBUG": "1"}
        environment |= jvm.environment if jvm is not None else {}
        environment |= planned(plan.faults) | dict(plan.variables)
        command = ["run", *plan.arguments()]
        if server is not None:
            super().__init__(server.start(plan.program, command, environment, log), log)
            return
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*command_of(plan.program), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        super().__init__(process, log)


def without_faults(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process without planned faults."""
    return {name: value for name, value in environment.items() if name != ENVIRONMENT}


def planned(faults: Sequence[Fault]) -> dict[str, str]:
    """The additional environment variables of a process with these faults."""
    return {ENVIRONMENT: encoded(faults), SWITCH: "1"} if faults else {}


def encoded(faults: Sequence[Fault]) -> str:
    """The faults in the form of the environment variable."""
    return json.dumps([asdict(fault) for fault in faults])


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process within the block."""
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
