"""Draws the pictures of docs/reference/event-time.md, from the functions that the engine computes with: `make
pictures`."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("svg")
matplotlib.rcParams.update({"svg.hashsalt": "epochal", "svg.fonttype": "none", "font.family": "sans-serif"})

from matplotlib import pyplot  # noqa: E402  after the choice of the format
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from epochal.contracts.conditions import BEGINNING, Clock  # noqa: E402
from epochal.declarations.windows import GridWindows, cumulative, sliding, tumbling  # noqa: E402
from epochal.state.watermarks import Declaration, Opening, TimedOperator, TimeGraph, observed, opened, output_of  # noqa: E402
from epochal.tasks.windows import assigned  # noqa: E402

FOLDER = Path(__file__).parents[1] / "docs" / "images"
MINUTE = 60_000_000
COLOURS = {"a": "#1f6fb4", "b": "#d9822b"}

ROWS: dict[int, dict[str, list[float]]] = {
    1: {"a": [1, 3, 4], "b": [2, 3]},
    2: {"a": [5, 8, 7], "b": [4, 6]},
    3: {"a": [9, 12], "b": [8, 7]},
    4: {"a": [13, 15, 14], "b": []},
    5: {"a": [17, 19], "b": []},
    6: {"a": [20, 22, 18], "b": []},
    7: {"a": [24, 26], "b": []},
    8: {"a": [27, 29], "b": [16, 25]},
    9: {"a": [31, 30], "b": [26, 28]},
    10: {"a": [33, 34], "b": [31, 32]},
}
"""Event times of the rows in minutes, by epoch and partition. An epoch takes four minutes."""


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for name, draw in {"watermarks": watermarks, "holds": holds, "windows": windows}.items():
        figure = draw()
        figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None})
        pyplot.close(figure)
    return 0


def watermarks() -> Figure:
    """Draw two partitions. One pauses, becomes idle, and then sends a row that is late."""
    graph = TimeGraph((Declaration("ts", 3 * MINUTE, idle_after=9 * MINUTE),))
    figure, axes = pyplot.subplots(figsize=(8.0, 4.4), layout="constrained")
    clock: Clock | None = None
    late, fire = [], []
    for epoch, rows in ROWS.items():
        slices = frozenset(partition for partition, times in rows.items() if times)
        opening = Opening(epoch * 4 * MINUTE, slices={"ts": slices}, known={"ts": frozenset("ab")})
        running = opened(graph, clock, opening)
        place = running.places["ts"]
        late.append(place.late / MINUTE if place.late != BEGINNING else np.nan)
        fire.append(place.fire / MINUTE if place.fire != BEGINNING else np.nan)
        latest = {partition: int(max(times) * MINUTE) for partition, times in rows.items() if times}
        clock = observed(graph, running, {"ts": latest})
        for partition, times in rows.items():
            for place_in_epoch, time in enumerate(times):
                is_late = time * MINUTE < place.late
                axes.plot(
                    epoch + 0.2 + 0.2 * place_in_epoch,
                    time,
                    "x" if is_late else "o",
                    color=COLOURS[partition],
                    markersize=8 if is_late else 5,
                    markeredgewidth=2.2 if is_late else 1,
                )
    edges = [*ROWS, max(ROWS) + 1]
    axes.stairs(
        fire, edges, color="#3a8f3a", linewidth=1.8, label="fire: what waits for it or earlier is due", baseline=None
    )
    axes.stairs(
        late,
        edges,
        color="#b03060",
        linewidth=1.8,
        linestyle="--",
        label="late: rows before it are late",
        baseline=None,
    )
    for partition, colour in COLOURS.items():
        axes.plot([], [], "o", color=colour, markersize=5, label=f"rows of partition {partition}")
    axes.plot([], [], "x", color=COLOURS["b"], markersize=8, markeredgewidth=2.2, label="a late row")
    axes.set_xticks([epoch + 0.5 for epoch in ROWS], [str(epoch) for epoch in ROWS])
    for edge in edges:
        axes.axvline(edge, color="#dddddd", linewidth=0.8, zorder=0)
    axes.set(xlabel="epoch", ylabel="event time (minutes)", xlim=(1, max(ROWS) + 1))
    axes.set_title('with_watermark("ts", "3 minutes", idle_after="9 minutes"), two partitions', fontsize=11)
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    return figure


def holds() -> Figure:
    """Draw one epoch: the watermark of each operator of a chain, and the watermark of its output."""
    join, window = 10 * MINUTE, 5 * MINUTE
    graph = TimeGraph(
        (
            Declaration("ts", 3 * MINUTE),
            TimedOperator("join", ("ts",), join),
            TimedOperator("window", ("join",), window),
            TimedOperator("top", ("window",)),
        )
    )
    first = observed(graph, opened(graph, None, Opening(0, slices={"ts": frozenset([""])})), {"ts": {"": 63 * MINUTE}})
    clock = opened(graph, first, Opening(1))
    lines = [
        ("with_watermark(.., '3 minutes')\ngreatest time seen: 12:03", "ts", 0),
        ("interval join, within=('-5 minutes', '10 minutes')\nhold: 10 minutes", "join", join),
        ("window, allowed_lateness='5 minutes'\nhold: 5 minutes", "window", window),
        ("what reads the windows", "top", 0),
    ]
    figure, axes = pyplot.subplots(figsize=(8.0, 3.4), layout="constrained")
    for height, (label, name, hold) in zip(range(len(lines), 0, -1), lines, strict=True):
        fire = clock.places[name].fire / MINUTE
        out = output_of(graph, clock, name).fire / MINUTE
        axes.barh(height, fire - 30, left=30, height=0.34, color="#3a8f3a", alpha=0.75)
        if hold:
            axes.barh(height, fire - out, left=out, height=0.34, color="none", edgecolor="#b03060", hatch="///")
        axes.text(30, height + 0.22, label.replace("\n", ";  "), fontsize=9, va="bottom")
        axes.text(
            fire + 0.4,
            height,
            f"fire 11:{fire:02.0f}" if fire < 60 else f"fire 12:{fire - 60:02.0f}",
            fontsize=9,
            va="center",
        )
    axes.set_yticks([])
    axes.set_ylim(0.6, len(lines) + 0.75)
    axes.set_xlim(30, 68)
    axes.set_xticks(range(30, 66, 5), [f"{11 + minute // 60}:{minute % 60:02}" for minute in range(30, 66, 5)])
    axes.set_xlabel("event time")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.set_title("One epoch: each operator fires to its watermark; its output may be its hold behind", fontsize=11)
    return figure


def windows() -> Figure:
    """Draw the rows of one key in windows of each kind."""
    rows = np.array([2, 4, 7, 11, 12, 23, 24, 26, 38, 41, 44, 57], dtype=np.int64) * MINUTE
    kinds: list[tuple[str, GridWindows | None]] = [
        ('tumbling("20 minutes")', tumbling("20 minutes")),
        ('sliding("20 minutes", "10 minutes")', sliding("20 minutes", "10 minutes")),
        ('cumulative("30 minutes", "10 minutes")', cumulative("30 minutes", "10 minutes")),
        ('session("8 minutes")', None),
    ]
    figure, axes = pyplot.subplots(figsize=(8.0, 5.0), layout="constrained")
    height = 0.0
    for label, kind in reversed(kinds):
        spans = _sessions(rows, 8 * MINUTE) if kind is None else _spans(kind, rows)
        height = _stacked(axes, spans, height)
        axes.text(-0.5, height - 0.05, label, fontsize=9.5, va="bottom", family="monospace")
        height += 0.75
    axes.plot(rows / MINUTE, np.full(len(rows), height), "o", color=COLOURS["a"], markersize=6)
    axes.text(-0.5, height + 0.25, "rows of one key", fontsize=9.5)
    axes.set_yticks([])
    axes.set(xlabel="event time (minutes)", xlim=(-11, 71), ylim=(-0.6, height + 0.8))
    axes.set_xticks(range(-10, 71, 10))
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    return figure


def _spans(kind: GridWindows, rows: np.ndarray) -> list[tuple[int, int]]:
    found = assigned(kind, rows)
    return sorted(set(zip(found.starts.tolist(), found.ends.tolist(), strict=True)))


def _sessions(rows: np.ndarray, gap: int) -> list[tuple[int, int]]:
    runs = np.split(rows, np.flatnonzero(np.diff(rows) > gap) + 1)
    return [(int(run[0]), int(run[-1]) + gap) for run in runs]


def _stacked(axes: Axes, spans: list[tuple[int, int]], height: float) -> float:
    """Draw the spans from ``height`` upwards, overlapping ones above one another. Returns the upper end."""
    ends: list[int] = []
    for start, end in spans:
        level = next((level for level, last in enumerate(ends) if last <= start), len(ends))
        ends[level:] = [end, *ends[level + 1 :]]
        axes.barh(
            height + 0.36 * level,
            (end - start) / MINUTE,
            left=start / MINUTE,
            height=0.28,
            color="#9cc3e6",
            edgecolor="#1f6fb4",
        )
    return height + 0.36 * len(ends)


if __name__ == "__main__":
    sys.exit(main())
