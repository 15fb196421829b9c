"""The section of ``make bench-nexmark-flink`` in RESULTS.md."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from benchmarks.descriptions import FLINK, baselines_described
from benchmarks.flink.queries import NOT_RUN, UPDATES
from benchmarks.nexmark_page import MEASURED, OURS, STATEFUL
from benchmarks.nexmark_page import ROCKSDB as STREAMING
from benchmarks.nexmark_results import REACHED, Measured, Run, markdown, rate_cell, ratio_cells
from benchmarks.nexmark_streaming import CANNOT

EVENTS, EPOCHS, ROUNDS = 500_000, 20, 2
HEAP, ROCKSDB = "Flink, heap", "Flink, RocksDB"
QUERIES = tuple(query for query in MEASURED if query not in NOT_RUN)
MEDIAN_AT_LEAST = 1.0
"""Minimum of the median speed relative to Flink with RocksDB."""
CHART = "nexmark-flink"
COMPARISON = Path(__file__).parents[2] / "docs" / "compare" / "structured-streaming-and-flink.md"
BLOCK = "make bench-nexmark-flink"
"""Block of the page that :func:`compared` fills."""

HEADER = ("query", OURS, ROCKSDB, HEAP, "Structured Streaming", "times RocksDB", "greatest", "times heap", "greatest")


def cells(found: Measured) -> tuple[str, ...]:
    """The line of a query, as in ``HEADER``."""
    rates = (rate_cell(found.rate(name)) for name in (OURS, ROCKSDB, HEAP, STREAMING))
    return (found.query, *rates, *ratio_cells(found.times(OURS, ROCKSDB)), *ratio_cells(found.times(OURS, HEAP)))


def verdicts(run: Run) -> list[str]:
    """A line for each state backend: the median of the queries' median ratios, for all and for stateful queries."""
    lines = []
    for name, least in ((ROCKSDB, MEDIAN_AT_LEAST), (HEAP, None)):
        ratios = {each.query: median(each.times(OURS, name)) for each in run.among(QUERIES) if each.times(OURS, name)}
        stateful = [ratio for query, ratio in ratios.items() if query in STATEFUL]
        if not ratios:
            lines.append(f"- median relative to {name}: not measured")
            continue
        target = "" if least is None else f", at least {least:g}: {REACHED[median(ratios.values()) >= least]}"
        of_stateful = f"; of the stateful queries {median(stateful):.2f}" if stateful else ""
        slower = [query for query, ratio in ratios.items() if ratio < 1]
        lines.append(
            f"- median of the queries relative to {name} {median(ratios.values()):.2f}{target}{of_stateful}; "
            f"slower than Flink: {', '.join(slower) or 'none'}"
        )
    return lines


def compared(run: Run) -> str:
    """The table of docs/compare: Epochal's speed relative to each other engine, median of the rounds."""
    others = (STREAMING, ROCKSDB, HEAP)
    measured = run.among(QUERIES)
    ratios = {name: {each.query: each.times(OURS, name) for each in measured} for name in others}
    rows = [
        (each.query, *(f"{median(found):.2f}" if (found := ratios[name][each.query]) else "" for name in others))
        for each in measured
    ]
    slower = [
        f"- {name}: {', '.join(query for query, found in of.items() if found and median(found) < 1) or 'none'}"
        for name, of in ratios.items()
    ]
    introduction = (
        f"Epochal's events a second as a multiple of those of the other engine, measured on {run.date} with "
        f"{run.machine['cores']} cores."
    )
    return "\n\n".join(
        [
            introduction,
            markdown(("query", *others), rows),
            "Queries in which the other engine was faster:",
            "\n".join(slower),
        ]
    )


def section(run: Run, version: str, settings: str, chart: str) -> str:
    """The section of a run. ``settings``: sentence about Flink's options; ``chart``: path relative to the page."""
    parameters, measured = run.parameters, run.among(QUERIES)
    reasons = [f"- {query}, in Flink: {reason}" for query, reason in NOT_RUN.items()]
    reasons += [f"- {query}, in Structured Streaming: {reason}" for query, reason in CANNOT.items()]
    reasons += [f"- {each.query}, {name}: {text}" for each in measured for name, text in each.failures.items()]
    missing = [query for query in QUERIES if query not in run.measured]
    not_measured = f"\n\nNot measured in this run: {', '.join(missing)}." if missing else ""
    machine = "\n".join(f"| {name} | {value} |" for name, value in {**run.machine, "Flink": version}.items())
    first = parameters["warm"] * parameters["events"]
    total = parameters["epochs"] * parameters["events"]
    return f"""## Nexmark, beside Flink

Written by `make bench-nexmark-flink` on {run.date}. Events a second, and in parentheses for each core, over the same
JSON lines: {total:,} events in time order, with times in milliseconds. All engines write JSON lines.

- Epochal and Structured Streaming (RocksDB) run {parameters["epochs"]} epochs or micro-batches of
  {parameters["events"]:,} events: the median of those after the first {parameters["warm"]}, each until the next one
  begins.
- Flink runs each query once over the same events as a bounded job, in streaming mode. Its rate is that of the events
  after the first {first:,}: from the time at which its sources have read these to the end of the job, which includes
  the last checkpoint and the commit of the last files. The start of the JVM and of the job, and the first
  {first:,} events, are not counted.
- {parameters["rounds"]} rounds, in which the engines alternate; rates are medians of the rounds, and each ratio is
  of one round (least and greatest).

{settings}

Flink outputs changes of its results (an update is two rows: {", ".join(sorted(UPDATES, key=lambda q: int(q[1:])))});
Epochal and Structured Streaming output the keys that changed in an epoch. Flink merges sessions whose pause is exactly
the gap (q11); the other two do not.

{markdown(HEADER, map(cells, measured))}{not_measured}

{chr(10).join(verdicts(run))}

![Events a second by query and engine, from JSON]({chart})

Not run:

{chr(10).join(reasons)}

Flink processes events one by one, so that its results appear with the next checkpoint, or, without transactional sinks,
within milliseconds. Latency is not compared here.

{baselines_described(FLINK, run.date)}

| | |
|---|---|
{machine}"""
