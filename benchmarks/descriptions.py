"""Texts of the results page: the baselines, and results of the papers that are not reproduced.

A baseline is the best program that a user would write without Epochal. A changed baseline has the date of the change.
Until its measure has run again, the page states that its numbers precede the change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.result import Result

ASYNCHRONOUS_TO_SYNCHRONOUS = "ABS graph, asynchronous / synchronous snapshots"
"""Prefix of the rows that :func:`snapshots_compared` reads."""

BEGIN, END = "<!-- baselines -->", "<!-- end of baselines -->"
_WRITTEN = re.compile(r"^Written by `make [\w-]+` on (\d{4}-\d{2}-\d{2})", re.MULTILINE)
_BLOCK = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)


@dataclass(frozen=True)
class Baseline:
    """``measure``: its name on the command line. ``changed``: date (ISO 8601) and description of the last change."""

    measure: str
    what: str
    changed: tuple[str, str] | None = None


STRUCTURED_STREAMING = (
    "Structured Streaming with as many shuffle partitions as cores, without adaptive execution; RocksDB with changelog "
    "checkpoints; also its state store in memory"
)
CHANGELOG = ("2026-11-27", "RocksDB has changelog checkpoints")

CHANGELOG_OF_LIMIT = ("2026-11-29", "the limit was added")

BENCH = (
    Baseline(
        "aggregate",
        f"the same aggregation as a Spark batch without state; {STRUCTURED_STREAMING}. Spark writes to `noop`, "
        "and Epochal's pipeline has no sink",
        CHANGELOG,
    ),
    Baseline(
        "process",
        "the faster of PySpark's two interfaces, `transformWithState` over rows and `transformWithStateInPandas`, with "
        "RocksDB, per row, on an input that is 20 times smaller",
        ("2026-11-27", "`transformWithState` over rows was added, and RocksDB has changelog checkpoints"),
    ),
    Baseline("programs", "a pipeline by hand with one `process()` for the same calls, in the same engine"),
    Baseline("page_rank", "networkx, for the result alone; its time is not compared"),
    Baseline("event_time", f"Epochal without windows; {STRUCTURED_STREAMING.partition('; also')[0]}", CHANGELOG),
    Baseline(
        "small_epoch, planning",
        "Spark jobs of the same shape in the same session: scan, aggregation, a Python stage that returns its rows; "
        "they store and write nothing",
    ),
    Baseline("abs_graph", "Spark jobs of the same shape without state and snapshots, at the same intervals"),
    Baseline(
        "query_nodes", "an ASGI application that returns the same bytes, on the same server with the same settings"
    ),
    Baseline(
        "backup", "`cp -r` of the same files, without checks; also followed by `sync`, because a backup is synced"
    ),
    Baseline(
        "dbms",
        "psycopg by hand: Arrow to CSV, COPY of one batch after the other into an unlogged staging table, one upsert "
        "in the order of the keys. No exactly-once delivery. Compared from the first row on, write-ahead log included",
        (
            "2026-11-27",
            "before, a new temporary table, all rows encoded before COPY, and the sink's log not counted",
        ),
    ),
    Baseline(
        "dbms_shards",
        "two processes, each with the program of `dbms` by hand and the rows of its own keys; the same rows as the "
        "sink's two tasks",
    ),
    Baseline(
        "kafka (sink)",
        "confluent-kafka's idempotent producer with the sink's settings: acks all, linger 5 ms, batches of 1,000,000 "
        "bytes, uncompressed. No transaction. Compared from the first row on, write-ahead log included",
        (
            "2026-11-27",
            "before, a new producer for each epoch, default batches, and the sink's log not counted",
        ),
    ),
    Baseline(
        "kafka (source)",
        "confluent-kafka consumers, a process for each partition, 10,000 messages a call, without their start",
        ("2026-11-27", "before, the start of the consumers' processes was counted"),
    ),
    Baseline("guarantees", "the delivery guarantees of the same sink, compared with each other"),
    Baseline(
        "hdfs",
        "the `hdfs` client with the same bytes in memory, one request for each file; pyarrow with the same options",
    ),
    Baseline(
        "tables",
        "Parquet by the same writer and one commit by the library (Delta: a write transaction; Iceberg: `add_files`), "
        "without marker and without fsync; for rows by keys, the library's `merge` of the same number of rows",
    ),
)
NEXMARK = (
    Baseline("all queries", f"{STRUCTURED_STREAMING}. Both write Parquet files", CHANGELOG),
    Baseline("the limit", "the query as a Spark batch without state over the files of one epoch", CHANGELOG_OF_LIMIT),
)
FLINK = (
    Baseline(
        "all queries",
        "Flink's SQL with mini-batches, with RocksDB (incremental checkpoints) and with state on the heap; Structured "
        "Streaming with RocksDB and changelog checkpoints. All read and write JSON lines",
    ),
)
DESCRIBED: Mapping[str, Sequence[Baseline]] = {"bench": BENCH, "bench-nexmark": NEXMARK, "bench-nexmark-flink": FLINK}
"""Baselines by the command whose section of the page describes them."""


def baselines_described(baselines: Sequence[Baseline], written: str) -> str:
    """The block for a section with numbers of the date ``written`` (ISO 8601)."""
    lines = [f"- {each.measure}: {each.what}." for each in baselines]
    older = [each for each in baselines if each.changed is not None and each.changed[0] > written]
    note = [f"- {each.measure}: {each.changed[1]}." for each in older if each.changed is not None]
    if note:
        lines += ["", f"**These baselines changed after {written}; the numbers here are older than the change:**", ""]
        lines += note
    return "\n".join([BEGIN, "Baselines of the measures that have one:", "", *lines, END])


def updated(section: str, baselines: Sequence[Baseline]) -> str:
    """Replace the block of baselines in a section of the page; its numbers stay.

    Raises ``ValueError`` if the section has no date or no block.
    """
    written = _WRITTEN.search(section)
    if written is None or not _BLOCK.search(section):
        raise ValueError("the section has no date, or no block of baselines")
    block = baselines_described(baselines, written[1])
    return _BLOCK.sub(lambda _: block, section)


def snapshots_compared(results: Sequence[Result]) -> str:
    """Comparison with figure 6 of the ABS paper, or an empty text if its rows were not measured."""
    ratios = [
        float(each.measured.split()[0])
        for each in results
        if each.measure.startswith(ASYNCHRONOUS_TO_SYNCHRONOUS) and each.measure.endswith("throughput")
    ]
    if not ratios:
        return ""
    verdict = "faster at every interval" if min(ratios) > 1.05 else "the paper's result is not reproduced"
    return f"""## ABS, figure 6: asynchronous and synchronous snapshots

In the paper asynchronous snapshots cost much less than synchronous ones, above all at short intervals. Here the
throughput with asynchronous snapshots is {min(ratios):.2f} to {max(ratios):.2f} times that with synchronous ones, on
a local disk: {verdict}.

An epoch is one Spark job, and no task of the next epoch starts before it has ended, in both modes. Tasks write and
sync their changes within the epoch, in both modes. Only the sinks' commit leaves the critical path with
`commit="asynchronous"`. On a local disk it renames a folder, and it competes with the next epoch for the cores. Sinks
whose commit waits for other machines have more to gain; that is not measured. Nor is figure 7, throughput by number of
machines.

"""
