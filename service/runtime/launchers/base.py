"""The launcher contract. Launchers are found through the entry point group ``epochal.launchers``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from epochal.driver.orders import DriverOrders
from epochal.service.runtime.isolation import ProcessUser


class ProcessReference(BaseModel):
    """Which process a driver is; kept in the catalog as text, so that any later control plane can find it again.

    Only the launcher that made it reads ``identity``, which must never come to mean another process: a process id alone
    is not one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    identity: str

    def __str__(self) -> str:
        return self.identity

    @classmethod
    def parse(cls, text: str) -> ProcessReference:
        return cls(identity=text)


class Launcher(ABC):
    """Starts drivers that outlive the control plane. All calls may block, and are made from threads."""

    def run_as(self, user: ProcessUser, home: Path) -> bool:
        """From now on start drivers as ``user``, and say that it is so; ``False`` where none run on this machine."""
        return False

    @abstractmethod
    def launch(self, orders: DriverOrders) -> ProcessReference:
        """Start a driver with these orders. Raises ``EnvironmentProblem`` with the fix where it cannot be started."""

    @abstractmethod
    def alive(self, reference: ProcessReference) -> bool:
        """Whether the process still exists. A stopped (SIGSTOP) process is alive."""

    @abstractmethod
    def exit_code(self, reference: ProcessReference) -> int | None:
        """The exit code of a process that has ended, negative for a signal; ``None`` when running or not known."""

    @abstractmethod
    def terminate(self, reference: ProcessReference, kill: bool) -> None:
        """Ask the driver to end, or (``kill``) end it and all that it started now. Nothing happens when it is gone."""
