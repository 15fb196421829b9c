"""Configuration, parameters and upgrade consent of an application, and the orders of one execution."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator

Parameters = Annotated[
    dict[str, JsonValue],
    Field(description="Values of the pipeline's `Parameters`, by name."),
]
"""JSON as the user gave it. Only ``pipeline/parameters.py`` validates it and fills in defaults, when the pipeline is
built; the catalog stores, compares and shows the given values."""


Delivery = Literal["exactly_once", "at_least_once", "idempotent"]
"""Effect on a sink's rows when a task or an epoch is run again (thesis 4.5.4, 4.5.6).

``exactly_once``: an epoch is visible once, and only after it is decided. ``at_least_once``: tasks write to the target
while they run, so that rows are visible before the decision and may be duplicated; none is missing. ``idempotent``: as
``at_least_once``, but a repeated row replaces its earlier copy.
"""
Guarantee = Literal["exactly_once", "at_least_once"]
"""Delivery guarantee of all sinks of an application that do not declare their own."""

DELIVERY: Final = "delivery"
"""Key in a handle's payload: how the task delivered its rows, if weaker than exactly once."""


class RestartStrategy(BaseModel):
    """Exponential back-off between attempts, at most ``max_restarts`` within ``window_seconds``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_restarts: int = Field(5, ge=0)
    window_seconds: float = Field(600.0, gt=0)
    backoff_seconds: float = Field(1.0, ge=0)
    backoff_limit_seconds: float = Field(60.0, ge=0)


class Autoscaling(BaseModel):
    """Automatic changes of the parallelism by the control plane.

    The *busy share* is the share of time in which the subtasks work: seconds of work per subtask and second.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    least: int = Field(1, ge=1, description="Minimum parallelism.")
    greatest: int = Field(ge=1, description="Maximum parallelism, at most max_parallelism.")
    per_operator: bool = Field(
        False, description="Change the numbers of subtasks of single operators, each between least and greatest."
    )
    target_busy_share: float = Field(
        0.5, gt=0, le=1, description="Busy share that a change of the parallelism aims at."
    )
    grow_above_share: float = Field(0.7, gt=0, le=1, description="The parallelism grows above this busy share.")
    shrink_below_share: float = Field(0.25, ge=0, lt=1, description="The parallelism shrinks below this busy share.")
    lag_seconds: float | None = Field(
        60.0,
        ge=0,
        description="The parallelism also grows when the lag of a source exceeds this; null: the lag is not "
        "considered.",
    )
    grow_after_seconds: float = Field(30.0, ge=0, le=900, description="Time for which a condition to grow must hold.")
    shrink_after_seconds: float = Field(
        300.0, ge=0, le=900, description="Time for which the condition to shrink must hold."
    )
    cool_down_seconds: float = Field(
        120.0,
        gt=0,
        le=86_400,
        description="Minimum time between two changes of the running version or parallelism; it doubles after each "
        "failure.",
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
    parallelisms: dict[str, Annotated[int, Field(ge=1)]] = Field(
        default_factory=dict,
        description="Subtasks of single operators, by name; they override the numbers that the pipeline declares. "
        "A program has its own name, or that of its class (`Ratings`: `ratings`).",
    )
    max_parallelism: int = Field(128, ge=1, le=32768, description="Key groups; cannot change once state exists.")
    state_backend: str = Field("heap", description="heap or lmdb: the executors' cache of the state.")
    epoch_interval_seconds: float = Field(1.0, ge=0, description="Minimum time between the starts of two epochs.")
    max_records_per_epoch: int | None = Field(
        None, ge=1, description="Maximum number of records in a slice, per source."
    )
    target_epoch_seconds: float | None = Field(
        None, gt=0, description="Epoch duration towards which slice sizes are adapted."
    )
    max_uncommitted_epochs: int = Field(
        3, ge=1, description="Maximum number of prepared epochs that wait for commits of their sinks."
    )
    commit: Literal["asynchronous", "synchronous"] = Field(
        "asynchronous",
        description="synchronous: an epoch opens when all earlier epochs are committed; max_uncommitted_epochs is "
        "ignored.",
    )
    epoch_timeout_seconds: float = Field(
        600.0, gt=0, description="Timeout for E1 to E4 of one epoch, which is then aborted."
    )
    clock_tolerance_seconds: float = Field(
        60.0,
        gt=0,
        le=86_400,
        description="Maximum deviation of a driver's wall clock from epoch time, and from the clock of the catalog's "
        "database at the start of an attempt. A wall clock that deviates more is ignored, or refused at the start.",
    )
    tolerable_failed_epochs: int = Field(
        3, ge=0, description="Maximum number of consecutive aborted epochs before the attempt fails."
    )
    retained_epochs: int = Field(1000, ge=1, description="Number of committed snapshots that are retained.")
    retained_seconds: float | None = Field(None, gt=0, description="Maximum age of retained snapshots.")
    compact_after_epochs: int = Field(50, ge=2, description="Length of a chain of deltas before bases are written.")
    compact_after_bytes: int = Field(
        16 << 20, ge=0, description="Size of the deltas, in bytes, at which bases are written before that."
    )
    compact_on_spark_bytes: int = Field(
        512 << 20,
        ge=0,
        description="Minimum size of the files that a compaction reads, in bytes, for a Spark job; smaller ones are "
        "compacted beside the driver.",
    )
    allow_dropped_state: tuple[str, ...] = Field(
        (),
        description="State tables (streaks.current) and columns (delays.worst) that an upgrade may drop, and loops "
        "(ranks) and columns (ranks.share) of records in flight.",
    )
    guarantee: Guarantee = Field(
        "exactly_once",
        description="Delivery guarantee of sinks that do not declare their own. at_least_once: where the sink "
        "supports it, "
        "tasks write to the target while they run, and rows of a slice that is run again are duplicated.",
    )
    master: str = Field("local[2]", description="Spark master.")
    spark: dict[str, str] = Field(default_factory=dict, description="Further Spark settings.")
    restart: RestartStrategy = RestartStrategy()
    autoscaling: Autoscaling | None = Field(
        None, description="Automatic changes of the parallelism by the control plane; null: none."
    )

    def stored(self) -> dict[str, Any]:
        """JSON form that the catalog stores, with the default of every setting that is not given."""
        return self.model_dump(mode="json")

    def parallelism_of(self, operator: str, declared: int | None = None) -> int:
        """Number of subtasks of an operator. ``declared``: the number in the pipeline, if any."""
        return self.parallelisms.get(operator, declared or self.parallelism)

    @property
    def epochs_ahead_of_commits(self) -> int:
        """Maximum number of decided and uncommitted epochs."""
        return 1 if self.commit == "synchronous" else self.max_uncommitted_epochs

    @field_validator("spark")
    @classmethod
    def _ansi(cls, spark: dict[str, str]) -> dict[str, str]:
        if spark.get("spark.sql.ansi.enabled", "true").strip().lower() != "true":
            raise ValueError(
                "spark.sql.ansi.enabled is always true: without it, sums that overflow would be wrong numbers. "
                "Remove the setting; to get null instead of an error, use try_add(..) or try_cast(..)"
            )
        return spark

    @model_validator(mode="after")
    def _parallelism_within_maximum(self) -> Configuration:
        if self.parallelism > self.max_parallelism:
            raise ValueError(f"parallelism {self.parallelism} is above max_parallelism {self.max_parallelism}")
        for operator, parallelism in self.parallelisms.items():
            if parallelism > self.max_parallelism:
                raise ValueError(
                    f"parallelisms.{operator} {parallelism} is above max_parallelism {self.max_parallelism}"
                )
        return self

    @model_validator(mode="after")
    def _parallelism_within_autoscaling(self) -> Configuration:
        scaling = self.autoscaling
        if scaling is None:
            return self
        if scaling.greatest > self.max_parallelism:
            raise ValueError(
                f"autoscaling.greatest {scaling.greatest} is above max_parallelism {self.max_parallelism}: a subtask "
                "needs at least one key group"
            )
        if not scaling.least <= self.parallelism <= scaling.greatest:
            raise ValueError(
                f"parallelism {self.parallelism} is not between autoscaling.least {scaling.least} and "
                f"autoscaling.greatest {scaling.greatest}; widen the range, or set autoscaling to null"
            )
        return self


class Acceptance(BaseModel):
    """Consent to the changes of one upgrade. Later versions do not inherit it; the lineage records it.

    Each name is ``OPERATOR`` (all of its columns, its keys and its inputs) or ``OPERATOR.COLUMN``.
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
        """Accepted names that match none of ``names``, each ``OPERATOR`` or ``OPERATOR.COLUMN`` of a difference."""
        known = {*names, *(name.partition(".")[0] for name in names)}
        return (name for name in (*self.changed, *self.partial) if name not in known)


NOTHING_ACCEPTED = Acceptance()


def _covered(names: Sequence[str], operator: str, column: str | None) -> bool:
    return operator in names or (column is not None and f"{operator}.{column}" in names)


class ExecutionOrders(BaseModel):
    """Orders of a driver: one application version, run as one attempt of one execution."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    application: str
    execution: str
    attempt: int
    artifact: str
    """sha256 of the artifact."""
    parameters: Parameters = {}
    configuration: Configuration = Configuration()
    version: int | None = None
    """Number of the application version; ``None`` without a catalog. ``by`` and ``message``: its author and reason."""
    by: str | None = None
    message: str | None = None
    acceptance: Acceptance = NOTHING_ACCEPTED
    """Consent to continue from the head with this version. Without effect after the version has committed an epoch."""
    shadow: bool = False
    """Run without sinks; a fork that only computes state."""
    available_now: bool = False
    """Process the input available when the attempt starts, commit it, and end: Spark's ``Trigger.AvailableNow``."""
    drain: bool = True
    """When all sources are bounded and have ended, fire all windows and timers in a last epoch. ``False``: stop without
    it, so that another run can continue. ``available_now`` never drains."""
    store: str
    """URL of the snapshot store."""
    cache_directory: str
    """Directory of the executors' local state stores; may be deleted at any time."""
