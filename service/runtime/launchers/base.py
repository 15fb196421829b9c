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
    """Which process a driver is; kept in the catalog as text, so that any later control plane can find it again.

    Only the launcher that made it reads ``identity``, which must never come to mean another process: a process id alone
    is not one. ``machine``: only there it means anything; ``None``: it does everywhere, or comes from a version that
    knew no other machine than its own.

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

    A reference with a machine is only ever asked for, and ended, on that machine. What needs an answer of somebody else
    raises ``LauncherUnavailable`` when there is none.
    """

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The launcher of a control plane, as it is found through its entry point. Raises ``OptionError`` and
        ``EnvironmentProblem`` where it cannot work."""
        raise NotImplementedError(f"{cls.__name__} cannot be made of a control plane's settings")

    def run_as(self, user: ProcessUser, home: Path) -> bool:
        """From now on start drivers as ``user``, and say that it is so; ``False`` where none run on this machine."""
        return False

    def keep_spares(self, number: int, folder: Path) -> bool:
        """From ``open`` on keep so many spare drivers, with ``folder`` for what they need on this machine; ``False``
        where there are none.

        A spare has Spark started and trained, and no code, token or name of an application. Only ``launch`` takes one,
        for one attempt, if all that is decided when Spark starts (master, settings, Java options, environment, user;
        of a pod its image, too) is what these orders would start it with. It gets the same orders, folder and log as a
        driver that is started anew, is found by the same name from then on, and nothing tells the two apart. One that
        does not answer is replaced, and ``launch`` starts a driver without it. What was not taken ends with the
        control plane that keeps it.
        """
        return False

    def keep_spares_while(self, leads: Callable[[], bool]) -> None:  # noqa: B027 on a machine each has its own
        """Keep spares only while ``leads``, where they cost somebody else what they need: nobody else takes them."""

    def tell_of_ends(self, tell: Callable[[], None]) -> None:  # noqa: B027 whoever wants to know looks, too
        """Call ``tell``, from any thread, soon after a driver of this machine has ended, as far as that can be seen:
        of those that it has launched or was asked for."""

    def open(self) -> None:  # noqa: B027 without spares there is nothing to do
        """Spares may be started from now on."""

    def close(self) -> None:  # noqa: B027 without spares there is nothing to do
        """Spares end; drivers go on."""

    @property
    def spares(self) -> SpareFigures:
        return SpareFigures()

    def check(self) -> None:  # noqa: B027 a machine is always there for its own processes
        """Raises ``LauncherUnavailable`` while whoever runs drivers does not answer: none can be started now."""

    def explain(self, reference: ProcessReference) -> str | None:
        """Why the driver has not begun, or has ended, as far as whoever runs it says: sentences, with what to do.
        ``None``: nothing is known beside exit code and log."""
        return None

    def bring_log(self, reference: ProcessReference) -> None:  # noqa: B027 a process of this machine writes to it
        """Have the log of a driver that the catalog knows in this control plane's folder from now on, as far as it can
        be had. Returns at once; asked again, nothing happens."""

    @abstractmethod
    def launch(self, orders: DriverOrders) -> ProcessReference:
        """Start the driver ``orders.name``, or find it where it runs already. Raises ``EnvironmentProblem`` with the
        fix where it cannot be started, ``LauncherUnavailable`` where nobody knows whether it was."""

    @abstractmethod
    def drivers(self) -> Mapping[DriverName, ProcessReference]:
        """The drivers that run and can be reached from here, by name, whoever has launched them; and those that have
        ended, as long as something is left of them that ``terminate`` removes."""

    @abstractmethod
    def alive(self, reference: ProcessReference) -> bool:
        """Whether the process still exists. A stopped (SIGSTOP) process is alive."""

    @abstractmethod
    def exit_code(self, reference: ProcessReference) -> int | None:
        """The exit code of a process that has ended, negative for a signal; ``None`` when running or not known."""

    @abstractmethod
    def terminate(self, reference: ProcessReference, kill: bool) -> None:
        """Ask the driver to end, or (``kill``) end it and all that it started now; what is left of one that has ended
        goes. Nothing happens when it is gone."""
