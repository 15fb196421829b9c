"""An application's configuration: what people set, and the engine and the control plane read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator

Parameters = Annotated[
    dict[str, JsonValue],
    Field(description="By name: values for the pipeline's `Parameters`. Sinks and sources may be named by them."),
]
"""JSON, as somebody has said it. The pipeline's own model checks it and fills in defaults where the pipeline is built
(``pipeline/parameters.py``), and nowhere else: what is kept, compared and shown is what was said."""


Delivery = Literal["exactly_once", "at_least_once", "idempotent"]
"""What becomes of a sink's rows when a task or an epoch is run again (thesis 4.5.4, 4.5.6).

``exactly_once``: an epoch is visible once, and only when it is decided. ``at_least_once``: tasks write to the target as
they run, so that rows are visible before the decision and may be there again; none is missing. ``idempotent``: as that,
where a row takes the place of the one that it repeats.
"""
Guarantee = Literal["exactly_once", "at_least_once"]
"""What an application promises of all its sinks that do not say otherwise."""

DELIVERY: Final = "delivery"
"""In a handle's payload how the task has delivered its rows, where that is less than exactly once."""


class RestartStrategy(BaseModel):
    """Exponential back-off between attempts, at most ``max_restarts`` within ``window_seconds``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_restarts: int = Field(5, ge=0)
    window_seconds: float = Field(600.0, gt=0)
    backoff_seconds: float = Field(1.0, ge=0)
    backoff_limit_seconds: float = Field(60.0, ge=0)


class Autoscaling(BaseModel):
    """When the control plane changes the parallelism by itself.

    The *busy share* is how much of the time the subtasks of all operators work: seconds of work by subtask and second.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    least: int = Field(1, ge=1, description="The least parallelism.")
    greatest: int = Field(ge=1, description="The greatest parallelism, at most max_parallelism.")
    target_busy_share: float = Field(0.5, gt=0, le=1, description="What a change of the parallelism aims at.")
    grow_above_share: float = Field(0.7, gt=0, le=1, description="Busier than this: it grows.")
    shrink_below_share: float = Field(0.25, ge=0, lt=1, description="Less busy than this: it shrinks.")
    lag_seconds: float | None = Field(
        60.0,
        ge=0,
        description="It also grows when a source is further behind than this; null: how far it is behind does not "
        "matter.",
    )
    grow_after_seconds: float = Field(30.0, ge=0, le=900, description="It has to be so for so long.")
    shrink_after_seconds: float = Field(300.0, ge=0, le=900, description="It has to be so for so long.")
    cool_down_seconds: float = Field(
        120.0,
        gt=0,
        le=86_400,
        description="At least this long between two changes of what runs; twice as long after each failure.",
    )

    @model_validator(mode="after")
    def _in_order(self) -> Autoscaling:
        if self.least > self.greatest:
            raise ValueError(f"least {self.least} is above greatest {self.greatest}")
        if self.target_busy_share > self.grow_above_share:
            raise ValueError(
                f"target_busy_share {self.target_busy_share:g} is above grow_above_share {self.grow_above_share:g}"
            )
        if self.shrink_below_share >= self.target_busy_share:
            raise ValueError(
                f"shrink_below_share {self.shrink_below_share:g} is not below target_busy_share "
                f"{self.target_busy_share:g}"
            )
        return self


class Configuration(BaseModel):
    """An application's configuration. Every field has a default; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    parallelism: int = Field(2, ge=1, description="Subtasks per operator, at most max_parallelism.")
    max_parallelism: int = Field(128, ge=1, le=32768, description="Key groups; cannot change once state exists.")
    state_backend: str = Field("heap", description="heap or lmdb: the executors' cache of the state.")
    epoch_interval_seconds: float = Field(1.0, ge=0, description="At least this long between the starts of two epochs.")
    max_records_per_epoch: int | None = Field(None, ge=1, description="Upper bound of a slice, per source.")
    target_epoch_seconds: float | None = Field(None, gt=0, description="Adapt the slices towards this epoch duration.")
    max_uncommitted_epochs: int = Field(3, ge=1, description="Prepared epochs that may wait for their sinks' commit.")
    commit: Literal["asynchronous", "synchronous"] = Field(
        "asynchronous",
        description="synchronous: an epoch opens when all before are committed, whatever max_uncommitted_epochs says.",
    )
    epoch_timeout_seconds: float = Field(600.0, gt=0, description="E1 to E4 of one epoch; then it is aborted.")
    clock_tolerance_seconds: float = Field(
        60.0,
        gt=0,
        le=86_400,
        description="Maximum deviation of a driver's wall clock from epoch time, and from the clock of the catalog's "
        "database at the start of an attempt. A wall clock that deviates more is ignored, or refused at the start.",
    )
    tolerable_failed_epochs: int = Field(3, ge=0, description="Aborted epochs in a row before the attempt fails.")
    retained_epochs: int = Field(1000, ge=1, description="Committed snapshots that can be read back.")
    retained_seconds: float | None = Field(None, gt=0, description="Snapshots older than this expire, too.")
    compact_after_epochs: int = Field(50, ge=2, description="Length of a chain of deltas before bases are written.")
    compact_after_share: float = Field(
        0.5, gt=0, description="Bases are also written when the deltas since are this share of their bytes .."
    )
    compact_after_bytes: int = Field(16 << 20, ge=0, description=".. and at least so many bytes.")
    compact_on_spark_bytes: int = Field(
        512 << 20, ge=0, description="State of so many bytes is compacted by a Spark job, less in the driver."
    )
    allow_dropped_state: tuple[str, ...] = Field(
        (),
        description="State tables (streaks.current) and columns (delays.worst) that an upgrade may drop, and loops "
        "(ranks) and columns (ranks.share) of records in flight.",
    )
    guarantee: Guarantee = Field(
        "exactly_once",
        description="How rows are delivered by sinks that do not say so themselves. at_least_once: where the sink can, "
        "tasks write to the target as they run, and a slice that is run again is there again.",
    )
    master: str = Field("local[2]", description="Spark master.")
    spark: dict[str, str] = Field(default_factory=dict, description="Further Spark settings.")
    restart: RestartStrategy = RestartStrategy()
    autoscaling: Autoscaling | None = Field(
        None, description="When the control plane changes the parallelism by itself; null: never."
    )

    def stored(self) -> dict[str, Any]:
        """JSON form that the catalog stores, with the default of every setting that is not given."""
        return self.model_dump(mode="json")

    @property
    def epochs_ahead_of_commits(self) -> int:
        """How many epochs may be decided and not committed."""
        return 1 if self.commit == "synchronous" else self.max_uncommitted_epochs

    @field_validator("spark")
    @classmethod
    def _ansi(cls, spark: dict[str, str]) -> dict[str, str]:
        if spark.get("spark.sql.ansi.enabled", "true").strip().lower() != "true":
            raise ValueError(
                "spark.sql.ansi.enabled is always true: without it a sum that leaves its type would be a wrong number. "
                "Leave it out; where null is meant instead of an error, write try_add(..) or try_cast(..)"
            )
        return spark

    @model_validator(mode="after")
    def _parallelism_within_maximum(self) -> Configuration:
        if self.parallelism > self.max_parallelism:
            raise ValueError(f"parallelism {self.parallelism} is above max_parallelism {self.max_parallelism}")
        return self

    @model_validator(mode="after")
    def _parallelism_within_autoscaling(self) -> Configuration:
        scaling = self.autoscaling
        if scaling is None:
            return self
        if scaling.greatest > self.max_parallelism:
            raise ValueError(
                f"autoscaling.greatest {scaling.greatest} is above max_parallelism {self.max_parallelism}: a subtask "
                "has one key group at least"
            )
        if not scaling.least <= self.parallelism <= scaling.greatest:
            raise ValueError(
                f"parallelism {self.parallelism} is not between autoscaling.least {scaling.least} and "
                f"autoscaling.greatest {scaling.greatest}; widen them, or switch autoscaling off (null)"
            )
        return self


class Acceptance(BaseModel):
    """Consent to the changes of one upgrade. It is not inherited by later versions, and is recorded in the lineage.

    Each name is ``OPERATOR`` (every column of it, its keys and its inputs) or ``OPERATOR.COLUMN``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    changed: tuple[str, ...] = Field(
        (),
        description="Operators (totals) and columns (totals.lo) whose argument, filter, key expression or input may "
        "differ from the version that computed the state.",
    )
    partial: tuple[str, ...] = Field(
        (),
        description="Operators and columns of aggregates that are added to existing keys and count rows only from this "
        "upgrade on.",
    )

    def __bool__(self) -> bool:
        return bool(self.changed or self.partial)

    def accepts_changed(self, operator: str, column: str | None = None) -> bool:
        """``column`` None: the keys or the inputs of the operator as a whole."""
        return _covered(self.changed, operator, column)

    def accepts_partial(self, operator: str, column: str) -> bool:
        return _covered(self.partial, operator, column)

    def unused(self, names: Sequence[str]) -> Iterator[str]:
        """The accepted names that are not in ``names``, each ``OPERATOR`` or ``OPERATOR.COLUMN`` of a difference."""
        known = {*names, *(name.partition(".")[0] for name in names)}
        return (name for name in (*self.changed, *self.partial) if name not in known)


NOTHING_ACCEPTED = Acceptance()


def _covered(names: Sequence[str], operator: str, column: str | None) -> bool:
    return operator in names or (column is not None and f"{operator}.{column}" in names)


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
