"""Epoch-based snapshots: thesis, algorithms 5 (sources), 6 (regular tasks) and 7 (loop heads), and loop expansion.

Line numbers are those of the listings. Two listings deviate from their sections, and the sections are right
(``tests/unit/property/test_cuts_as_printed.py`` shows it): algorithm 6 records the state (8) at the first marker
instead of the last; algorithm 7 never stops recording and does not separate the logs of two epochs.
"""

from __future__ import annotations

from tests.kit.cuts.processes import (
    Channel,
    Execution,
    Marker,
    Message,
    Process,
    Processed,
    ProcessGraph,
)


class Task(Process):
    """The common part of algorithms 5 and 6: a volatile local state that messages change."""

    def __init__(self, name: str, execution: Execution) -> None:
        super().__init__(name, execution)
        self.s: tuple[Processed, ...] = ()

    def begin(self, state: tuple[Processed, ...]) -> None:
        self.s = state

    def on_message(self, channel: Channel | None, message: Message) -> None:
        self.s = self.process(message, self.s)

    def on_marker(self, channel: Channel, marker: Marker) -> None:
        raise AssertionError(f"{self.name} has no input channels")

    def on_epoch(self, epoch: int) -> None:
        raise AssertionError(f"{self.name} is no source")


class SourceTask(Task):
    """Algorithm 5."""

    def on_epoch(self, epoch: int) -> None:  # 6
        self.record(epoch, self.s)  # 7
        self.send_marker(Marker(epoch))  # 8, 9


class RegularTask(Task):
    """Algorithm 6: epoch alignment."""

    def __init__(self, name: str, execution: Execution) -> None:
        super().__init__(name, execution)  # 1, 3
        self.enabled = set(self.inputs)  # 2

    def receives(self, channel: Channel) -> bool:  # 5, 7: on c ∈ Enabled
        return channel in self.enabled

    def on_marker(self, channel: Channel, marker: Marker) -> None:  # 7
        self.enabled.discard(channel)  # 9
        if not self.enabled:  # 10
            self.record(marker.epoch, self.s)  # 8, "once markers have been received in all inputs" (figure 3.15(b))
            self.send_marker(marker)  # 11, 12
            self.enabled = set(self.inputs)  # 13


class UnalignedTask(Task):
    """Algorithm 6 with all channels enabled always (thesis, 4.5.4): at-least-once.

    Its state may reflect messages of later epochs, which a rollback repeats; none is ever missing.
    """

    def __init__(self, name: str, execution: Execution) -> None:
        super().__init__(name, execution)
        self.received: dict[int, set[Channel]] = {}

    def on_marker(self, channel: Channel, marker: Marker) -> None:
        received = self.received.setdefault(marker.epoch, set())
        received.add(channel)
        if received == set(self.inputs):
            self.record(marker.epoch, self.s)
            self.send_marker(marker)


class LoopHead(Process):
    """Algorithm 7. ``s_p`` is the log of the head: the records that were in the loop when the epoch ended."""

    def __init__(self, name: str, execution: Execution) -> None:
        super().__init__(name, execution)  # 1
        self.recording: dict[
            int, list[Message]
        ] = {}  # 2, 3: by epoch, as the next epoch can end before a marker returns
        self.forwarded: tuple[Processed, ...] = ()
        self._at: dict[int, tuple[Processed, ...]] = {}

    def begin(self, state: tuple[Processed, ...]) -> None:
        self.forwarded = state

    def on_epoch(self, epoch: int) -> None:  # 5
        self.recording[epoch] = []  # 6
        self._at[epoch] = self.forwarded
        self.send_marker(Marker(epoch))  # 7, 8

    def on_marker(self, channel: Channel, marker: Marker) -> None:  # 9
        logged = self.recording.pop(marker.epoch)  # 11; "until a marker is processed back at the head" (3.4.4.4)
        self.record(marker.epoch, self._at.pop(marker.epoch), {channel: logged})  # 10

    def on_message(self, channel: Channel | None, message: Message) -> None:  # 12
        for logged in self.recording.values():
            logged.append(message)
        self.forwarded = self.process(message, self.forwarded)  # out → <send, m>


def epoch_snapshots(name: str, execution: Execution) -> Process:
    """Return the process of a stream process graph: a source, the head of a loop, or a regular task."""
    if name in execution.graph.heads:
        return LoopHead(name, execution)
    return (RegularTask if execution.graph.inputs(name) else SourceTask)(name, execution)


def unaligned(name: str, execution: Execution) -> Process:
    """Like :func:`epoch_snapshots`, for acyclic graphs, without alignment."""
    return (UnalignedTask if execution.graph.inputs(name) else SourceTask)(name, execution)


def expanded(graph: ProcessGraph) -> ProcessGraph:
    """Loop expansion (thesis, 3.4.4.4): each back edge becomes a tail, a phantom channel, and a head."""
    channels: list[Channel] = []
    heads = set()
    for channel in graph.channels:
        if not channel.closes_loop:
            channels.append(channel)
            continue
        head, tail = f"head {channel}", f"tail {channel}"
        heads.add(head)
        channels += [Channel(channel.sender, tail), Channel(tail, head, closes_loop=True)]
        channels.append(Channel(head, channel.receiver))
    return ProcessGraph(tuple(channels), frozenset(heads))
