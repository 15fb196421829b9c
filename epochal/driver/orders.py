"""Orders of a driver: a single JSON document on standard input, which is then closed; and the orders of a spare driver
that has no application yet."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from epochal.contracts.configuration import NOTHING_ACCEPTED, Acceptance, Configuration, Parameters

SPARE = "--spare"
"""Last but one argument of a spare driver's command; the last is the file that records the attempt it has become."""
SPARE_QUESTION, SPARE_ANSWER = b"?\n", b".\n"
FETCH = "--fetch"
"""Last but one argument of a driver that fetches its orders from a control plane; the last argument is its name."""
SPARE_POD = "--spare-pod"
"""Last but one argument of a driver's pod that has no application yet; the last is its name."""
CONTROL_PLANES_VARIABLE = "EPOCHAL_CONTROL_PLANES"
"""Control planes from which a driver fetches its orders: URLs separated by blanks."""
TOKEN_FILE_VARIABLE = "EPOCHAL_ORDERS_TOKEN_FILE"
"""File with the credential for fetching orders: a token that the cluster has issued for the driver's pod."""
ADDRESS_VARIABLE = "EPOCHAL_POD_ADDRESS"
"""Address of the driver's pod for other processes."""


class ArtifactOrder(BaseModel):
    """The code to run: the sha256 of its bytes, which the control plane stores, and the file name from its author."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: str
    filename: str


class DriverOrders(BaseModel):
    """Orders of a driver. Their only credential is ``token``, which is valid for this execution and attempt only.

    ``store``: the URL of the snapshot store's root. ``work_directory``: a local folder of this driver alone, which may
    be lost.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    control_planes: tuple[str, ...]
    """URLs of the control planes; answers to heartbeats contain the current list."""
    token: str = Field(repr=False)
    execution: str
    attempt: int = Field(ge=1)
    application: str
    artifact: ArtifactOrder
    parameters: Parameters = {}
    configuration: Configuration = Configuration()
    version: int | None = None
    by: str | None = None
    message: str | None = None
    acceptance: Acceptance = NOTHING_ACCEPTED
    shadow: bool = False
    available_now: bool = False
    drain: bool = True
    store: str
    work_directory: Path
    executor_template: dict[str, Any] | None = None
    """For a driver in a pod with executors in pods: the pod template from which Spark creates executors."""


class SpareOrders(BaseModel):
    """Settings with which a spare driver starts Spark: those fixed at the start, independent of any application."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    master: str
    spark: dict[str, str] = {}
    """As in :class:`Configuration`."""
    executor_template: dict[str, Any] | None = None
    """As in :class:`DriverOrders`."""


class ExitCode(IntEnum):
    """Exit code of a driver. A driver that exits with ``FAILED`` has reported it through ``finish`` if possible."""

    FINISHED = 0
    FAILED = 1
    BAD_ORDERS = 2
    FENCED = 3
