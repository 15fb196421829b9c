"""An application's configuration: how its epochs are run. All fields have defaults; a version stores all of them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

SparkOption = Annotated[str, StringConstraints(pattern=r"^spark\.[A-Za-z0-9._-]+$", max_length=200)]


class RestartStrategy(BaseModel):
    """After a failed attempt the next one starts, after a growing pause, at most so often in a window."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_restarts: int = Field(default=5, ge=0)
    window_seconds: float = Field(default=600.0, gt=0)
    backoff_seconds: float = Field(default=1.0, ge=0)
    backoff_limit_seconds: float = Field(default=60.0, ge=0)


class ApplicationConfiguration(BaseModel):
    """How an application's epochs are run (design: epochs.md, state.md)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    parallelism: int = Field(default=2, ge=1, le=32768)
    max_parallelism: int = Field(default=128, ge=1, le=32768)
    state_backend: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]*$", max_length=60)] = "lmdb"
    epoch_interval_seconds: float = Field(default=1.0, ge=0)
    max_records_per_epoch: int | None = Field(default=None, ge=1)
    target_epoch_seconds: float | None = Field(default=None, gt=0)
    max_uncommitted_epochs: int = Field(default=3, ge=1)
    epoch_timeout_seconds: float = Field(default=600.0, gt=0)
    tolerable_failed_epochs: int = Field(default=3, ge=0)
    retained_epochs: int = Field(default=1000, ge=1)
    compact_after_epochs: int = Field(default=50, ge=1)
    guarantee: Literal["exactly_once"] = "exactly_once"
    master: str = Field(default="local[2]", min_length=1, max_length=500)
    spark: dict[SparkOption, str] = {}
    restart: RestartStrategy = RestartStrategy()

    @model_validator(mode="after")
    def _parallelism_within_maximum(self) -> ApplicationConfiguration:
        if self.parallelism > self.max_parallelism:
            raise ValueError(f"parallelism {self.parallelism} is above max_parallelism {self.max_parallelism}")
        return self
