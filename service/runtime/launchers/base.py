"""The launcher contract. Launchers are found through the entry point group ``epochal.launchers``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict

from epochal.driver.orders import DriverOrders
from epochal.service.domain.executions import DriverName
from epochal.service.domain.ports import SpareFigures
from epochal.service.domain.settings import Settings
from epochal.service.runtime.isolation import ProcessUser
from epochal.service.runtime.machine import Machine

_ON_A_MACHINE = "//"


class ProcessReference(BaseModel):
    """Reference to a driver's process, stored in the catalog as text, so that any later control plane can find it.

    Only the launcher that created it reads ``identity``, which must never denote another process: a process id alone
    is not one. ``machine``: the machine on which it is valid; ``None``: valid on every machine, or written by a
    version that supported only its own machine.

    As text: ``//{host}/{boot}/{identity}``, or the identity alone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    identity: str
    machine: Machine | None = None

    def __str__(self) -> str:
        if self.machine is None:
            return self.identity
        return f"{_ON_A_MACHINE}{self.machine.host}/{self.machine.boot}/{self.identity}"

    @classmethod
    def parse(cls, text: str) -> ProcessReference:
        if not text.startswith(_ON_A_MACHINE):
            return cls(identity=text)
        host, boot, identity = text.removeprefix(_ON_A_MACHINE).split("/", 2)
        return cls(identity=identity, machine=Machine(host, boot))


class Launcher(ABC):
    """Starts drivers that outlive the control plane. All calls may block, and are made from threads.

    A reference with a machine is used on that machine only. Calls that depend on a cluster raise
    ``LauncherUnavailable`` if it does not answer.
    """

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Create the launcher of a control plane; called through the entry point. Raises ``OptionError``, and
        ``EnvironmentProblem`` if it cannot work."""
        raise NotImplementedError(f"{cls.__name__} cannot be created from a control plane's settings")

    def run_as(self, user: ProcessUser, home: Path) -> bool:
        """Start drivers as ``user``. ``False`` if this launcher starts no processes on this machine."""
        return False

    def keep_spares(self, number: int, folder: Path) -> bool:
        """Hold this number of warm drivers after ``open``, with ``folder`` for their files on this machine.
        ``False`` if this launcher has none.

        A warm driver has Spark started and trained, and no code, token or name of an application. Only ``launch`` takes
        one, for one attempt, if everything that Spark's start determines (master, settings, Java options, environment,
        user; the image of a pod) is equal to what these orders require. It gets the same orders, folder, log and name
        as a driver that is started cold, and does not differ from it afterwards. One that does not answer is replaced,
        and ``launch`` starts a driver cold. Warm drivers that were not taken end with their control plane.
        """
        return False

    def keep_spares_while(self, leads: Callable[[], bool]) -> None:  # noqa: B027 optional
        """Hold warm drivers only while ``leads``, if they use resources of a cluster: only the leader launches
        drivers."""

    def tell_of_ends(self, tell: Callable[[], None]) -> None:  # noqa: B027 optional
        """Call ``tell``, from any thread, soon after a driver has ended that this launcher has launched or looked up. A
        hint: not every end is noticed."""

    def open(self) -> None:  # noqa: B027 optional
        """Start warm drivers from now on."""

    def close(self) -> None:  # noqa: B027 optional
        """Stop warm drivers; drivers continue."""

    @property
    def spares(self) -> SpareFigures:
        return SpareFigures()

    def check(self) -> None:  # noqa: B027 optional
        """Raises ``LauncherUnavailable`` while no driver can be started, since the cluster does not answer."""

    def explain(self, reference: ProcessReference) -> str | None:
        """The reason why the driver has not started or has ended, with what to do, as the cluster reports it. ``None``:
        only the exit code and the log are known."""
        return None

    def bring_log(self, reference: ProcessReference) -> None:  # noqa: B027 optional
        """Copy the log of a driver of the catalog to this control plane's folder, continuously and as far as possible.
        Returns immediately. Idempotent."""

    @abstractmethod
    def launch(self, orders: DriverOrders) -> ProcessReference:
        """Start the driver ``orders.name``, or find it if it already runs. Raises ``EnvironmentProblem`` with the
        remedy if it cannot be started, ``LauncherUnavailable`` if it is unknown whether it was."""

    @abstractmethod
    def drivers(self) -> Mapping[DriverName, ProcessReference]:
        """All running drivers within reach, by name, including those of other control planes; and drivers that have
        ended and whose remains ``terminate`` deletes."""

    @abstractmethod
    def alive(self, reference: ProcessReference) -> bool:
        """``True`` while the process exists. A stopped (SIGSTOP) process is alive."""

    @abstractmethod
    def exit_code(self, reference: ProcessReference) -> int | None:
        """The exit code of a process that has ended, negative for a signal; ``None`` when running or not known."""

    @abstractmethod
    def terminate(self, reference: ProcessReference, kill: bool) -> None:
        """Request the end of the driver, or (``kill``) end it and all its processes immediately. Deletes the remains of
        a driver that has ended. Idempotent."""
