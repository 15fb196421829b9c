"""The states that applications, executions and attempts can be in."""

from __future__ import annotations

from typing import Literal

ExecutionState = Literal["starting", "running", "stopping", "stopped", "failed"]
ApplicationState = Literal["created", "starting", "running", "stopping", "stopped", "failed"]
AttemptState = Literal["running", "ended", "lost", "failed"]
