"""Drivers as processes of this machine, each the leader of its own session, with its own log file."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from epochal import faults
from epochal.driver.orders import DriverOrders
from epochal.engine import class_archive
from epochal.errors import EnvironmentProblem
from epochal.logs import FORMAT_VARIABLE
from epochal.service.domain.ports import DriverName
from epochal.service.runtime.folders import take_folder
from epochal.service.runtime.isolation import ProcessUser, identity_of
from epochal.service.runtime.launchers.base import Launcher, ProcessReference
from epochal.service.runtime.launchers.java import check_java
from epochal.service.runtime.launchers.processes import LocalProcess, session_leaders
from epochal.service.runtime.logs.files import log_path
from epochal.service.runtime.machine import this_machine

_PASSED_ON = ("PATH", "JAVA_HOME", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", class_archive.FOLDER, FORMAT_VARIABLE)
# EPOCHAL_SECRET_..: what pipelines refer to as secret("env:EPOCHAL_SECRET_..").
_PASSED_ON_PREFIXES = ("SPARK_", "PYSPARK_", "HADOOP_", "EPOCHAL_SECRET_")


def driver_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What a driver sees of the control plane's environment: an allow-list, so that no other secret comes through."""
    passed = {
        name: value for name, value in environment.items() if name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIXES)
    }
    if faults.switched_on(environment):
        passed |= {name: environment[name] for name in (faults.SWITCH, faults.ENVIRONMENT) if name in environment}
    # Executors run plain `python3` unless told otherwise, which may be another Python without Epochal.
    passed |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "PYTHONUNBUFFERED": "1"}
    return passed


def _prepare_work(folder: Path, user: ProcessUser | None) -> None:
    if user is None:
        folder.mkdir(parents=True, exist_ok=True)
    elif not folder.exists() or folder.stat().st_uid != user.uid:
        # Another user's, from before: what is in it can be had again.
        shutil.rmtree(folder, ignore_errors=True)
        take_folder(folder, user)


class LocalLauncher(Launcher):
    """``logs`` is the folder of ``{application}/{execution}-{attempt}.log``; ``command`` runs a driver (for tests).

    The last argument of a driver's command is its name: it is there from the process's first moment on, so that one
    whose launcher was killed is found, and unlike an environment it is not handed on to what the driver starts.
    """

    def __init__(self, logs: Path, command: tuple[str, ...] = (sys.executable, "-m", "epochal.driver")) -> None:
        self._logs = logs
        self._command = command
        # Children of this process have to be waited for, or their entries (and ids) stay; adopted ones are not ours.
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()
        self._user: ProcessUser | None = None
        self._home = Path()

    def run_as(self, user: ProcessUser, home: Path) -> bool:
        self._user, self._home = user, home
        return True

    def launch(self, orders: DriverOrders) -> ProcessReference:
        name = DriverName(orders.execution, orders.attempt)
        there = self.drivers().get(name)
        if there is not None:
            return there
        environment = driver_environment(os.environ)
        check_java(environment)
        user = self._user
        if user is not None:
            environment = user.environment(environment, self._home)
        _prepare_work(orders.work_directory, user)
        path = log_path(self._logs, orders.application, orders.execution, orders.attempt)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as log:
            try:
                child = subprocess.Popen(
                    [*self._command, str(name)],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=orders.work_directory,
                    env=environment,
                    start_new_session=True,
                    **identity_of(user),
                )
            except OSError as error:
                raise EnvironmentProblem(f"The driver of {orders.application} cannot be started: {error}.") from error
        identity = str(LocalProcess.find(child.pid) or LocalProcess(child.pid, "ended"))
        with self._lock:
            self._children[identity] = child
        assert child.stdin is not None
        try:
            child.stdin.write(orders.model_dump_json().encode())
            child.stdin.close()
        except BrokenPipeError:
            pass  # It ended before it read its orders: the supervisor finds its exit code and its log.
        return ProcessReference(identity=identity, machine=this_machine())

    def drivers(self) -> Mapping[DriverName, ProcessReference]:
        user = os.geteuid() if self._user is None else self._user.uid
        found = {}
        for process, arguments in session_leaders(user):
            if len(arguments) == len(self._command) + 1 and arguments[1:-1] == self._command[1:]:
                execution, _, attempt = arguments[-1].rpartition("-")
                if execution and attempt.isdecimal():
                    reference = ProcessReference(identity=str(process), machine=this_machine())
                    found[DriverName(execution, int(attempt))] = reference
        return found

    def alive(self, reference: ProcessReference) -> bool:
        child = self._children.get(reference.identity)
        if child is not None:
            return child.poll() is None
        return LocalProcess.parse(reference.identity).exists()

    def exit_code(self, reference: ProcessReference) -> int | None:
        child = self._children.get(reference.identity)
        return None if child is None else child.poll()

    def terminate(self, reference: ProcessReference, kill: bool) -> None:
        LocalProcess.parse(reference.identity).signal_group(signal.SIGKILL if kill else signal.SIGTERM)
