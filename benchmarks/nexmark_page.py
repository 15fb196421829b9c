"""The section of ``make bench-nexmark`` in RESULTS.md: its table, targets and explanations."""

from __future__ import annotations

from statistics import median

from benchmarks.descriptions import NEXMARK, baselines_described
from benchmarks.nexmark_results import (
    REACHED,
    Measured,
    Run,
    markdown,
    rate_cell,
    ratio_cells,
    verdict,
)
from benchmarks.nexmark_streaming import CANNOT, NOT_IN_MEMORY

MEASURED = tuple(f"q{number}" for number in range(23))
STATELESS = ("q0", "q1", "q2", "q10", "q13", "q14", "q21", "q22")
STATEFUL = tuple(query for query in MEASURED if query not in STATELESS)
BOUNDED_BY_BATCH = ("q1", "q2")
"""Queries whose time has a target relative to the limit."""
EVENTS, EPOCHS, ROUNDS = 1_000_000, 20, 2
WARM = 10
"""Number of first epochs of a run that are not counted, because the JVM warms up."""
OURS, ROCKSDB, IN_MEMORY = "Epochal", "Structured Streaming, RocksDB", "Structured Streaming, in memory"
LIMIT = "Spark batch, no state"
ROCKSDB_AT_LEAST, IN_MEMORY_AT_LEAST, MEDIAN_AT_LEAST = 1.3, 1.0, 2.0
"""Minimum speed of a stateful query relative to Structured Streaming, and of their median with RocksDB."""
LIMIT_AT_MOST = 1.1
"""Maximum time of a stateless query relative to the limit."""
CHART = "nexmark"

HEADER = ("query", OURS, "limit", "RocksDB", "in memory", "times RocksDB", "greatest", "times in memory", "of limit")


def cells(found: Measured) -> tuple[str, ...]:
    """The line of a query, as in ``HEADER``."""
    rates = (rate_cell(found.rate(name)) for name in (OURS, LIMIT, ROCKSDB, IN_MEMORY))
    in_memory = ratio_cells(found.times(OURS, IN_MEMORY))[0]
    _, slowest = ratio_cells(found.times(LIMIT, OURS))
    return (found.query, *rates, *ratio_cells(found.times(OURS, ROCKSDB)), in_memory, slowest)


def verdicts(run: Run) -> list[str]:
    """A line for each target."""
    stateful = run.among(STATEFUL)
    rocksdb = {each.query: each.times(OURS, ROCKSDB) for each in stateful}
    in_memory = {each.query: each.times(OURS, IN_MEMORY) for each in stateful}
    least = [min(ratios) for ratios in rocksdb.values() if ratios]
    middle = "not measured"
    if least:
        middle = f"{median(least):.2f}, {REACHED[median(least) >= MEDIAN_AT_LEAST]}"
    bounded = {each.query: each.times(LIMIT, OURS) for each in run.among(BOUNDED_BY_BATCH)}
    return [
        verdict(
            f"each stateful query at least {ROCKSDB_AT_LEAST:g} times Structured Streaming with RocksDB",
            rocksdb,
            least=ROCKSDB_AT_LEAST,
        ),
        verdict(
            f"each stateful query at least {IN_MEMORY_AT_LEAST:.1f} times Structured Streaming with state in memory",
            in_memory,
            least=IN_MEMORY_AT_LEAST,
        ),
        f"- median of the stateful queries' least ratios to RocksDB, at least {MEDIAN_AT_LEAST:g}: {middle}",
        verdict(
            f"{' and '.join(BOUNDED_BY_BATCH)} at most {LIMIT_AT_MOST:g} times the time of the limit",
            bounded,
            most=LIMIT_AT_MOST,
        ),
    ]


def section(run: Run, chart: str) -> str:
    """The section of a run. ``chart``: path of its picture, relative to the page."""
    parameters = run.parameters
    reasons = [f"- {query}: {reason}" for query, reason in CANNOT.items()]
    reasons += [f"- {query}, in memory: {reason}" for query, reason in NOT_IN_MEMORY.items()]
    missing = [query for query in MEASURED if query not in run.measured]
    not_measured = f"\n\nNot measured in this run: {', '.join(missing)}." if missing else ""
    machine = "\n".join(f"| {name} | {value} |" for name, value in run.machine.items())
    return f"""## Nexmark

Written by `make bench-nexmark` on {run.date}. Events a second, and in parentheses for each core, with
{parameters["events"]:,} events in each of the {parameters["epochs"]} epochs or micro-batches of a run: the median of
those after the first {WARM}, each until the next one begins, and of {parameters["rounds"]} rounds, in which the engines
alternate; with state in memory in one round. All write their output to Parquet files, atomically for each epoch or
micro-batch.

The limit is the same query as a Spark batch without state over the files of one epoch, written to Parquet files. It is
a bound: it keeps nothing, and its result is that of one epoch alone. Ratios are of one round each: least and greatest
speed relative to RocksDB, least relative to state in memory, and greatest time relative to the limit.

{markdown(HEADER, map(cells, run.among(MEASURED)))}{not_measured}

{chr(10).join(verdicts(run))}

Stateless queries: {", ".join(STATELESS)}.

![Events a second by query and engine]({chart})

Structured Streaming cannot express all of them:

{chr(10).join(reasons)}

{baselines_described(NEXMARK, run.date)}

| | |
|---|---|
{machine}"""
