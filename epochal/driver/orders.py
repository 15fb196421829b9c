"""The driver's orders: the one JSON document that it reads from standard input, which is closed after it; and what a
spare driver is told before there is an application for it."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from epochal.contracts.configuration import NOTHING_ACCEPTED, Acceptance, Configuration, Parameters

SPARE = "--spare"
"""Last but one argument of a spare driver's command; the last is the file that says whose driver it has become."""
SPARE_QUESTION, SPARE_ANSWER = b"?\n", b".\n"
FETCH = "--fetch"
"""Last but one argument of a driver that fetches its orders from a control plane; the last is its name."""
SPARE_POD = "--spare-pod"
"""Last but one argument of a driver's pod that has no application yet; the last is its name."""
CONTROL_PLANES_VARIABLE = "EPOCHAL_CONTROL_PLANES"
"""Where it fetches them: URLs with blanks in between."""
TOKEN_FILE_VARIABLE = "EPOCHAL_ORDERS_TOKEN_FILE"
"""A file with what it shows for them: a token that the cluster has made for its pod."""
ADDRESS_VARIABLE = "EPOCHAL_POD_ADDRESS"
"""Where others reach its pod."""


class ArtifactOrder(BaseModel):
    """Which code to run: the sha256 of its bytes, which the control plane has, and the name that its author gave it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: str
    filename: str


class DriverOrders(BaseModel):
    """All that a driver is told. It holds no credential but ``token``, good for this execution and attempt only.

    ``store`` is the URL of the snapshot store's root; ``work_directory`` is local, its own, and may be lost.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    control_planes: tuple[str, ...]
    """Where it can call; heartbeats bring the list as it is then."""
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
    """Of a driver in a pod that has executors in pods: the pod template that Spark makes them of."""


class SpareOrders(BaseModel):
    """What a spare driver starts Spark with: all that is decided when it starts, and nothing of any application."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    master: str
    spark: dict[str, str] = {}
    """As :class:`Configuration` has it."""
    executor_template: dict[str, Any] | None = None
    """As :class:`DriverOrders` has it."""


class ExitCode(IntEnum):
    """``FAILED`` was reported through ``finish`` where that was possible."""

    FINISHED = 0
    FAILED = 1
    BAD_ORDERS = 2
    FENCED = 3
