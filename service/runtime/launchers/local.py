"""Drivers as processes of this machine, each the leader of its own session, with its own log file."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Self
from uuid import uuid4

from epochal import faults
from epochal.contracts.configuration import Configuration
from epochal.driver.orders import SPARE, DriverOrders
from epochal.engine import class_archive
from epochal.errors import EnvironmentProblem
from epochal.logs import FORMAT_VARIABLE
from epochal.secrets import VARIABLES
from epochal.service.domain.executions import DriverName
from epochal.service.domain.ports import SpareFigures
from epochal.service.domain.settings import Settings
from epochal.service.runtime.folders import take_folder
from epochal.service.runtime.isolation import ProcessUser, identity_of
from epochal.service.runtime.launchers.base import Launcher, ProcessReference
from epochal.service.runtime.launchers.java import check_java
from epochal.service.runtime.launchers.process_ends import ProcessEnds
from epochal.service.runtime.launchers.processes import LocalProcess, session_leaders
from epochal.service.runtime.launchers.spare_process import (
    ProcessLauncher,
    SpareFiles,
    SpareKey,
    SpareProcess,
    claimed_name,
    driver_name,
)
from epochal.service.runtime.logs.files import log_path
from epochal.service.runtime.machine import this_machine
from epochal.service.runtime.warm_pool import Idleness, PoolTimes, WarmPool
from epochal.store_variables import variables_for_store
from epochal.wire.projects import DEFAULT_PROJECT, project_of
from epochal.wire.trust import CA_VARIABLE, trusted

log = logging.getLogger(__name__)

_PASSED_ON = (
    "PATH",
    "JAVA_HOME",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "TZ",
    class_archive.FOLDER,
    FORMAT_VARIABLE,
    CA_VARIABLE,
)
_PASSED_ON_PREFIXES = ("SPARK_", "PYSPARK_", "HADOOP_")


def driver_environment(environment: Mapping[str, str], project: str | None, store: str = "") -> dict[str, str]:
    """The control plane's environment as drivers of a project inherit it: an allow-list, which excludes other secrets.
    Without a project, no secrets of a project.

    ``store``: URL of the store that all drivers read and write. If it is an object store, the variables of its cloud,
    with their secrets, are passed on.
    """
    passed = variables_for_store(environment, store) | {
        name: value for name, value in environment.items() if name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIXES)
    }
    if project is not None:
        passed |= project_secrets(environment, project)
    if faults.switched_on(environment):
        passed |= {name: environment[name] for name in (faults.SWITCH, faults.ENVIRONMENT) if name in environment}
    # Executors run `python3` by default, which may be another Python without Epochal.
    passed |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "PYTHONUNBUFFERED": "1"}
    return passed


def project_secrets(environment: Mapping[str, str], project: str) -> dict[str, str]:
    """Secrets in the control plane's environment that pipelines of the project name
    ``secret("env:EPOCHAL_SECRET_..")``."""
    return {
        VARIABLES + secret: value
        for name, value in environment.items()
        if (secret := _secret_of(project, name)) is not None
    }


def _secret_of(project: str, variable: str) -> str | None:
    """The name by which drivers of the project know the secret ``variable`` of the control plane; ``None`` if it
    belongs to another project. If two projects match, ``A`` and ``A_SECRET_B``, the longer one counts."""
    if project == DEFAULT_PROJECT:
        return variable.removeprefix(VARIABLES) if variable.startswith(VARIABLES) else None
    owner, _, secret = variable.rpartition("_SECRET_")
    is_own = owner == f"EPOCHAL_PROJECT_{project.upper().replace('-', '_')}"
    return secret if is_own and secret else None


def _prepare_work(folder: Path, user: ProcessUser | None) -> None:
    if user is None:
        folder.mkdir(parents=True, exist_ok=True)
    elif not folder.exists() or folder.stat().st_uid != user.uid:
        # Created by an earlier configuration for another user. The content is a cache.
        shutil.rmtree(folder, ignore_errors=True)
        take_folder(folder, user)


class LocalLauncher(Launcher):
    """``logs`` is the folder of ``{application}/{execution}-{attempt}.log``; ``command`` runs a driver (for tests);
    ``spares`` is the folder of the claim files, which a launcher without spares reads, too; ``store`` is the URL of the
    snapshot store.

    The last argument of a driver's command is its name. It exists from the start of the process, so a driver is found
    even if its launcher was killed; unlike an environment variable, child processes do not inherit it. For a former
    spare, the last argument names a claim file, which contains the name before the driver receives its orders.

    An author's process runs as the same user and can show any command. It can pass for a driver and end drivers, but
    neither stops nor delays the listing; a process that this launcher started takes precedence over any other.
    """

    def __init__(
        self,
        logs: Path,
        command: tuple[str, ...] = (sys.executable, "-m", "epochal.driver"),
        spares: Path | None = None,
        store: str = "",
    ) -> None:
        self._logs = logs
        self._store = store
        self._command = command
        self._claims = None if spares is None else Path(os.path.realpath(spares))
        self._refused: set[str] = set()
        """Processes in the last listing whose claim was refused. Each is logged once."""
        # Children must be reaped, or their entries (and ids) remain; adopted drivers are not children of this process.
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()
        self._user: ProcessUser | None = None
        self._home = Path()
        self._spares: WarmPool[SpareKey, SpareProcess] | None = None
        self._ends: ProcessEnds | None = None

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Raises ``OptionError`` where ``EPOCHAL_CA_FILE``, which drivers inherit, holds no certificates."""
        trusted()
        return cls(settings.logs_directory, spares=settings.spares_directory, store=settings.store_url)

    def run_as(self, user: ProcessUser, home: Path) -> bool:
        self._user, self._home = user, home
        return True

    def keep_spares(self, number: int, folder: Path, times: PoolTimes = PoolTimes()) -> bool:
        self._claims = folder = Path(os.path.realpath(folder))
        launcher = ProcessLauncher(lambda key: self._start_spare(key, folder))
        self._spares = WarmPool(launcher, number, lambda: self._key(Configuration()), times, Idleness().is_quiet)
        return True

    def tell_of_ends(self, tell: Callable[[], None]) -> None:
        self._ends = ProcessEnds(tell)

    def open(self) -> None:
        if self._spares is not None:
            self._spares.open()

    def close(self) -> None:
        if self._ends is not None:
            self._ends.close()
        if self._spares is not None:
            self._spares.close()

    @property
    def spares(self) -> SpareFigures:
        return SpareFigures() if self._spares is None else self._spares.figures

    def launch(self, orders: DriverOrders) -> ProcessReference:
        name = DriverName(orders.execution, orders.attempt)
        there = self.drivers().get(name)
        if there is not None:
            return there
        _prepare_work(orders.work_directory, self._user)
        path = log_path(self._logs, orders.application, orders.execution, orders.attempt)
        path.parent.mkdir(parents=True, exist_ok=True)
        project = project_of(orders.application)
        spare = self._spare_for(self._key(orders.configuration, project))
        if spare is not None and spare.become(name, orders, path):
            return self._kept(spare.process, spare.child)
        environment = self._environment(project)
        check_java(environment)
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
                    **identity_of(self._user),
                )
            except OSError as error:
                raise EnvironmentProblem(f"The driver of {orders.application} cannot be started: {error}.") from error
        reference = self._kept(LocalProcess.find(child.pid) or LocalProcess(child.pid, "ended"), child)
        assert child.stdin is not None
        try:
            child.stdin.write(orders.model_dump_json().encode())
            child.stdin.close()
        except BrokenPipeError:
            pass  # It ended before it read its orders: the supervisor finds its exit code and its log.
        return reference

    def _spare_for(self, key: SpareKey) -> SpareProcess | None:
        pool = self._spares
        if pool is None:
            return None
        if not key.in_one_process:
            pool.postpone()
            return None
        return pool.take(key, lambda spare: spare if spare.answers(pool.times.answer) else None)

    def _kept(self, process: LocalProcess, child: subprocess.Popen[bytes]) -> ProcessReference:
        with self._lock:
            self._children[str(process)] = child
        return ProcessReference(identity=str(process), machine=this_machine())

    def _environment(self, project: str) -> dict[str, str]:
        environment = driver_environment(os.environ, project, self._store)
        return environment if self._user is None else self._user.environment(environment, self._home)

    def _key(self, configuration: Configuration, project: str = DEFAULT_PROJECT) -> SpareKey:
        return SpareKey(
            master=configuration.master,
            spark=tuple(sorted(configuration.spark.items())),
            environment=tuple(sorted(self._environment(project).items())),
            user=None if self._user is None else self._user.uid,
        )

    def _start_spare(self, key: SpareKey, folder: Path) -> SpareProcess:
        """Raises ``OSError``."""
        self._remove_files_of_ended_spares(folder)
        files = SpareFiles.of(folder / f"{uuid4().hex}.claim")
        _prepare_work(files.folder, self._user)
        ours, theirs = socket.socketpair()
        with theirs, files.log.open("ab") as log:
            child = subprocess.Popen(
                [*self._command, SPARE, str(files.claim)],
                stdin=theirs.fileno(),
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=files.folder,
                env=dict(key.environment),
                start_new_session=True,
                **identity_of(self._user),
            )
        return SpareProcess(key, child, LocalProcess.find(child.pid) or LocalProcess(child.pid, "ended"), ours, files)

    def _remove_files_of_ended_spares(self, folder: Path) -> None:
        """Delete unused files of spares, including those of earlier control planes and of former warm drivers."""
        there = {path.with_suffix(".claim") for path in folder.iterdir()}
        used = {Path(arguments[-1]) for _, arguments in self._processes() if arguments[-2:-1] == (SPARE,)}
        for claim in there - used:
            SpareFiles.of(claim).remove()

    def _processes(self) -> Iterator[tuple[LocalProcess, tuple[str, ...]]]:
        """Yield the driver processes, with the arguments that follow this launcher's own command."""
        user = os.geteuid() if self._user is None else self._user.uid
        own = len(self._command)
        for process, arguments in session_leaders(user):
            if arguments[1:own] == self._command[1:]:
                yield process, arguments[own:]

    def drivers(self) -> Mapping[DriverName, ProcessReference]:
        found: dict[DriverName, ProcessReference] = {}
        refused = set()
        for process, arguments in self._processes():
            try:
                name = self._name_of(arguments)
            except ValueError as error:
                refused.add(str(process))
                if str(process) not in self._refused:
                    log.warning("process %s is not counted as a driver: %s", process, error)
                continue
            if name is not None and (name not in found or str(process) in self._children):
                found[name] = ProcessReference(identity=str(process), machine=this_machine())
        self._refused = refused
        return found

    def _name_of(self, arguments: tuple[str, ...]) -> DriverName | None:
        """Return the name that a command shows; ``None`` where it has none. Raises ``ValueError`` for a false claim."""
        match arguments:
            case (name,):
                return driver_name(name)
            case (option, claim) if option == SPARE and self._claims is not None:
                return claimed_name(Path(claim), self._claims)
        return None

    def alive(self, reference: ProcessReference) -> bool:
        child, process = self._children.get(reference.identity), LocalProcess.parse(reference.identity)
        if self._ends is not None:
            self._ends.watch(process.pid)  # before the check, so that an end in between is reported
        return process.exists() if child is None else child.poll() is None

    def exit_code(self, reference: ProcessReference) -> int | None:
        child = self._children.get(reference.identity)
        return None if child is None else child.poll()

    def terminate(self, reference: ProcessReference, kill: bool) -> None:
        LocalProcess.parse(reference.identity).signal_group(signal.SIGKILL if kill else signal.SIGTERM)
