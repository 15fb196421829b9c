"""How one execution runs: its orders, and what the application's configuration says."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from epochal.contracts.acceptance import NOTHING_ACCEPTED, Acceptance
from epochal.contracts.configuration import Configuration
from epochal.contracts.parameters import Parameters

__all__ = ["Configuration", "ExecutionOrders"]


class ExecutionOrders(BaseModel):
    """What a driver runs: one application version, as one attempt of one execution."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    application: str
    execution: str
    attempt: int
    artifact: str
    """sha256 of the artifact."""
    parameters: Parameters = {}
    configuration: Configuration = Configuration()
    version: int | None = None
    """The number of the application version; ``None`` where versions are not counted. Made ``by`` whom, and why."""
    by: str | None = None
    message: str | None = None
    acceptance: Acceptance = NOTHING_ACCEPTED
    """What going on from the head with this version accepts. Without effect once the version has committed an epoch."""
    shadow: bool = False
    """Run without sinks: a fork that only computes state."""
    available_now: bool = False
    """Take what the sources have when the attempt starts, commit it, and end: Spark's ``Trigger.AvailableNow``."""
    drain: bool = True
    """When all sources are bounded and at their end, bring out everything that waits, in a last epoch; ``False``: stop
    without, so that another run can go on. ``available_now`` never drains."""
    store: str
    """URL of the snapshot store."""
    cache_directory: str
    """Where executors keep their local state stores; may be deleted at any time."""
