"""Drivers as processes that tests kill: each is the command ``epochal run``, with faults planned at exact steps.

A driver's Python process is what runs the protocol; a JVM takes most of a driver's start. :class:`SparkJvm` is one that
outlives the drivers that use it one after the other, so that dozens of deaths cost seconds, not minutes.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pyspark.java_gateway import launch_gateway

from epochal.engine.class_archive import archive_options
from epochal.faults import ENVIRONMENT, SWITCH, Fault

# The command `epochal run`, but with the engine's log, which a test that fails wants to show.
_LOGGING = "logging.basicConfig(level='INFO', format='%(asctime)s %(levelname)s %(name)s: %(message)s')"
_PROGRAM = f"import logging; {_LOGGING}; from epochal.service.cli.main import main; main()"
COMMAND = (sys.executable, "-c", _PROGRAM, "run")


class SparkJvm:
    """A JVM without a Spark context, for drivers that come one after the other.

    Spark allows one context per JVM. That of a driver that was killed lives on, with its running tasks and its Python
    workers, as executors do when they lose their driver; :meth:`end_context` ends it.
    """

    def __init__(self, memory: str = "1g") -> None:
        # Asked for through the environment: pyspark's launcher takes no other way, and reads it once.
        arguments = (
            f"--driver-memory {memory} --conf spark.ui.enabled=false "
            f"--driver-java-options {shlex.quote(archive_options())} pyspark-shell"
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
    parameters: Mapping[str, Any] = field(default_factory=dict)
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


class DriverProcess:
    """A running driver. ``jvm`` ``None``: it starts its own, which ends with it."""

    def __init__(self, plan: DriverPlan, log: Path, jvm: SparkJvm | None = None) -> None:
        self.log = log
        environment = {name: value for name, value in os.environ.items() if name != ENVIRONMENT}
        environment |= jvm.environment if jvm is not None else {}
        if plan.faults:
            environment |= {ENVIRONMENT: encoded(plan.faults), SWITCH: "1"}
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*COMMAND, *plan.arguments()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment | {"EPOCHAL_DEBUG": "1"},
                start_new_session=True,
            )

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
            raise AssertionError(f"the driver did not end within {seconds} s: {self.log_end()}") from None

    def wait_until(self, reached: Callable[[], bool], seconds: float = 600) -> None:
        """Return once ``reached()`` holds. An error when the driver ends before, or it takes too long."""
        deadline = time.monotonic() + seconds
        while not reached():
            if not self.running or time.monotonic() > deadline:
                state = "runs still" if self.running else f"has ended with {self._process.returncode}"
                raise AssertionError(f"what was waited for did not come; the driver {state}: {self.log_end()}")
            time.sleep(0.05)

    def wait_until_stopped(self) -> None:
        """Return once it is stopped (SIGSTOP)."""
        self.wait_until(lambda: Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL to it and to whatever it started itself. Safe to call again."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def log_end(self, characters: int = 3000) -> str:
        return self.log.read_text(errors="replace")[-characters:]


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
