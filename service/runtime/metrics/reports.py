"""Metrics that drivers have measured, of applications that run or have ended recently."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from prometheus_client.core import Metric

from epochal.contracts.measurements import Load, SourceReport
from epochal.service.catalog.driver_reports import Measured
from epochal.service.runtime.metrics.families import counter, gauge, histogram

_APPLICATION: Final = ["application"]
_SINK: Final = ["application", "sink"]
_SOURCE: Final = ["application", "source"]
_OPERATOR: Final = ["application", "operator"]
_SUBTASK: Final = ["application", "operator", "subtask"]


def of_reports(reports: Sequence[Measured], moment: datetime) -> Iterator[Metric]:
    yield histogram(
        "epochal_epoch_seconds",
        "Time from the opening of an epoch to its commit",
        _APPLICATION,
        (([item.application], item.totals.epochs) for item in reports),
    )
    yield histogram(
        "epochal_epoch_step_seconds",
        "Duration of the steps of epochs: E1 to E7; R, recovery, once in an attempt",
        ["application", "step"],
        (([item.application, step], durations) for item in reports for step, durations in item.totals.steps.items()),
    )
    yield histogram(
        "epochal_task_step_seconds",
        "Duration of the steps of tasks: T1 to T3, of each subtask of an operator or a sink",
        ["application", "step"],
        (([item.application, step], durations) for item in reports for step, durations in item.totals.tasks.items()),
    )
    yield counter(
        "epochal_epoch_part_seconds",
        "Time of committed epochs by part: planning, spark, python, store, sink, protocol",
        ["application", "part"],
        (([item.application, part], seconds) for item in reports for part, seconds in item.totals.parts.items()),
    )
    yield histogram(
        "epochal_sink_commit_seconds",
        "Time from the decision of an epoch to its commit by a sink",
        _SINK,
        (([item.application, sink], durations) for item in reports for sink, durations in item.totals.sinks.items()),
    )
    yield histogram(
        "epochal_compaction_seconds",
        "Duration of compactions",
        _APPLICATION,
        (([item.application], item.totals.compactions) for item in reports),
    )
    yield counter(
        "epochal_failed_compactions",
        "Compactions that failed",
        _APPLICATION,
        (([item.application], item.totals.failed_compactions) for item in reports),
    )
    subtasks = [
        ([item.application, operator, str(subtask)], work)
        for item in reports
        for operator, works in item.totals.subtasks.items()
        for subtask, work in enumerate(works)
    ]
    yield counter(
        "epochal_subtask_rows",
        "Rows processed by subtasks of operators; only for applications with at most 1,000 subtasks",
        _SUBTASK,
        ((labels, work.rows) for labels, work in subtasks),
    )
    yield counter(
        "epochal_subtask_busy_seconds",
        "Seconds of work of subtasks of operators, without waiting; only for applications with at most 1,000 subtasks",
        _SUBTASK,
        ((labels, work.busy_seconds) for labels, work in subtasks),
    )
    yield counter(
        "epochal_state_read_bytes",
        "Bytes of state that tasks read from the memory of their process, the cache of their machine, or the store",
        ["application", "from"],
        (([item.application, origin], size) for item in reports for origin, size in item.totals.read_bytes.items()),
    )
    yield from _of_the_moment([item for item in reports if item.runs], moment)


def _of_the_moment(reports: Sequence[Measured], moment: datetime) -> Iterator[Metric]:
    yield gauge(
        "epochal_idle_timestamp_seconds",
        "Time at which the driver was last idle: no input available, all earlier input committed",
        _APPLICATION,
        (([item.application], item.moment.idle_at.timestamp()) for item in reports if item.moment.idle_at is not None),
    )
    yield gauge(
        "epochal_sink_blocked_seconds",
        "Time for which a sink has failed to commit a decided epoch; 0 for working sinks",
        _SINK,
        (
            ([item.application, sink], _since(item.moment.blocked_sinks.get(sink), moment))
            for item in reports
            for sink in dict.fromkeys([*item.totals.sinks, *item.moment.blocked_sinks])
        ),
    )
    yield gauge(
        "epochal_store_waiting_seconds",
        "Time for which the driver has waited for a snapshot store that does not answer; 0 while it answers",
        _APPLICATION,
        (([item.application], _since(item.moment.store_away_since, moment)) for item in reports),
    )
    yield gauge(
        "epochal_clock_deviation_seconds",
        "The driver's wall clock minus its first reading and the time elapsed since; ignored beyond "
        "clock_tolerance_seconds",
        _APPLICATION,
        (([item.application], item.moment.clock_deviation_seconds) for item in reports),
    )
    yield gauge(
        "epochal_epoch_time_ahead_seconds",
        "Epoch time of the latest epoch minus the driver's clock; timers and times to live in processing time pause "
        "until the clock reaches it",
        _APPLICATION,
        (([item.application], item.moment.epoch_time_ahead_seconds) for item in reports),
    )
    rows = [(item.application, item.moment.state_rows) for item in reports]
    size = [(item.application, item.moment.state_bytes) for item in reports]
    yield gauge(
        "epochal_state_rows",
        "Rows in the files of the state: an upper bound for the number of rows of state",
        _APPLICATION,
        (([name], count) for name, count in rows if count is not None),
    )
    yield gauge(
        "epochal_state_bytes",
        "Bytes in the files of the state: bases and later deltas",
        _APPLICATION,
        (([name], count) for name, count in size if count is not None),
    )
    yield from _of_loads([(item.application, item.moment.load) for item in reports if item.moment.load is not None])
    sources = [(item.application, *known) for item in reports for known in item.moment.sources.items()]
    yield from _of_sources(sources, moment)


def _of_loads(loads: Sequence[tuple[str, Load]]) -> Iterator[Metric]:
    yield gauge(
        "epochal_parallelism",
        "Number of subtasks of each operator that has no number of its own",
        _APPLICATION,
        (([name], load.parallelism) for name, load in loads),
    )
    yield gauge(
        "epochal_busy_share",
        "Seconds of work of all operators within the last minute, by subtask and second",
        _APPLICATION,
        (([name], load.busy_share) for name, load in loads),
    )
    operators = [([name, operator], found) for name, load in loads for operator, found in load.operators.items()]
    yield gauge(
        "epochal_operator_subtasks",
        "Number of subtasks of an operator",
        _OPERATOR,
        ((labels, found.subtasks) for labels, found in operators),
    )
    yield gauge(
        "epochal_operator_skew",
        "Rows of the subtask with the most rows within the last minute, divided by the mean of all subtasks",
        _OPERATOR,
        ((labels, found.skew) for labels, found in operators if found.skew is not None),
    )
    yield gauge(
        "epochal_operator_stragglers",
        "Subtasks that worked much longer than others without more rows, within the last minute",
        _OPERATOR,
        ((labels, len(found.stragglers)) for labels, found in operators),
    )


def _of_sources(sources: Sequence[tuple[str, str, SourceReport]], moment: datetime) -> Iterator[Metric]:
    yield gauge(
        "epochal_source_lag_records",
        "Available records that are in no decided epoch, for sources that can count them",
        _SOURCE,
        (([name, source], found.records) for name, source, found in sources if found.records is not None),
    )
    yield gauge(
        "epochal_source_lag_files",
        "Available files that are in no decided epoch, for file sources",
        _SOURCE,
        (([name, source], found.files) for name, source, found in sources if found.files is not None),
    )
    yield gauge(
        "epochal_source_skipped_files",
        "Files that decided epochs record as missing, for file sources with missing='skip'",
        _SOURCE,
        (([name, source], found.skipped_files) for name, source, found in sources if found.files is not None),
    )
    yield gauge(
        "epochal_source_lag_seconds",
        "Time since all available input had been read; 0 if none is left, missing if unknown",
        _SOURCE,
        (
            ([name, source], _since(found.read_until, moment) if found.is_behind else 0)
            for name, source, found in sources
            if found.read_until is not None
        ),
    )
    yield gauge(
        "epochal_source_reachable",
        "0 if a source's external system does not respond, 1 otherwise",
        _SOURCE,
        (([name, source], found.reachable) for name, source, found in sources),
    )


def _since(at: datetime | None, moment: datetime) -> float:
    return 0.0 if at is None else max(0.0, (moment - at).total_seconds())
