"""The launcher contract. Launchers are found through the entry point group ``epochal.launchers``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from epochal.driver.orders import DriverOrders
from epochal.service.domain.ports import DriverName, SpareFigures
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

    A reference with a machine is only ever asked for, and ended, on that machine.
    """

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

    @abstractmethod
    def launch(self, orders: DriverOrders) -> ProcessReference:
        """Start the driver ``orders.name``, or find it where it runs already. Raises ``EnvironmentProblem`` with the
        fix where it cannot be started."""

    @abstractmethod
    def drivers(self) -> Mapping[DriverName, ProcessReference]:
        """The drivers that run and can be reached from here, by name, whoever has launched them."""

    @abstractmethod
    def alive(self, reference: ProcessReference) -> bool:
        """Whether the process still exists. A stopped (SIGSTOP) process is alive."""

    @abstractmethod
    def exit_code(self, reference: ProcessReference) -> int | None:
        """The exit code of a process that has ended, negative for a signal; ``None`` when running or not known."""

    @abstractmethod
    def terminate(self, reference: ProcessReference, kill: bool) -> None:
        """Ask the driver to end, or (``kill``) end it and all that it started now. Nothing happens when it is gone."""
