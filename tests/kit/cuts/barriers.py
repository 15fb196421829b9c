"""Asynchronous barrier snapshotting: ABS, algorithms 1 (acyclic) and 2 (cyclic execution graphs).

Line numbers are those of the listings. A source has the input ``Nil``, through which the coordinator injects barriers.
Lines 25 and 26 log the message (the listing has the channel) of a loop input (the listing has ``node``) "until they
receive stage barriers from them" (4.3; the listing continues until all loop inputs have received theirs). Barriers
carry no number: a process counts them.
"""

from __future__ import annotations

from typing import Final, cast

from tests.kit.cuts.processes import Channel, Execution, Marker, Message, Process, Processed

NIL: Final = Channel("coordinator", "Nil")


class BarrierTask(Process):
    """The common part of both algorithms."""

    def __init__(self, name: str, execution: Execution) -> None:
        super().__init__(name, execution)
        self.state: tuple[Processed, ...] = ()  # 2
        self.input_channels = frozenset(self.inputs) or frozenset({NIL})  # 3
        self.blocked: set[Channel] = set()
        self._stage = 0

    def begin(self, state: tuple[Processed, ...]) -> None:
        self.state = state

    def receives(self, channel: Channel) -> bool:
        return channel not in self.blocked

    def on_epoch(self, epoch: int) -> None:
        self.on_barrier(NIL)

    def on_marker(self, channel: Channel, marker: Marker) -> None:
        self.on_barrier(channel)

    def on_barrier(self, input: Channel) -> None:
        raise NotImplementedError

    def on_message(self, channel: Channel | None, message: Message) -> None:
        self.state = self.process(message, self.state)

    def broadcast(self) -> None:
        """Send the barrier of the next stage to all outputs."""
        self._stage += 1
        self.send_marker(Marker(self._stage))


class AcyclicTask(BarrierTask):
    """Algorithm 1."""

    def on_barrier(self, input: Channel) -> None:  # 6
        if input != NIL:  # 7
            self.blocked.add(input)  # 8, 9
        if input == NIL or self.blocked == self.input_channels:  # 10
            self.broadcast()  # 12
            self.record(self._stage, self.state)  # 13
            self.blocked.clear()  # 11, 14, 15


class CyclicTask(BarrierTask):
    """Algorithm 2. One snapshot at a time: a barrier of the next stage would count for the current stage."""

    def __init__(self, name: str, execution: Execution) -> None:
        super().__init__(name, execution)
        self.marked: set[Channel] = set()  # 2
        self.logging = False  # 3
        self.loop_inputs = {channel for channel in self.inputs if channel.closes_loop}  # 5
        self.state_copy: tuple[Processed, ...] | None = None  # 6
        self.backup_log: dict[Channel, list[Message]] = {channel: [] for channel in self.loop_inputs}

    def on_barrier(self, input: Channel) -> None:  # 8
        self.marked.add(input)  # 9
        regular = self.input_channels - self.loop_inputs  # 10
        if input not in self.loop_inputs:  # 11
            self.blocked.add(input)  # 12
            if not self.logging and self.marked == regular:  # 13
                self.state_copy, self.logging = self.state, True  # 14
                self.broadcast()  # 15
                self.blocked.clear()  # 16, 17
        if self.marked == self.input_channels:  # 19
            self.record(self._stage, cast("tuple[Processed, ...]", self.state_copy), self.backup_log)  # 20
            self.marked.clear()  # 21
            self.logging = False
            self.state_copy = None  # 22
            self.backup_log = {channel: [] for channel in self.loop_inputs}

    def on_message(self, channel: Channel | None, message: Message) -> None:  # 24
        if self.logging and channel in self.loop_inputs and channel not in self.marked:  # 25
            assert channel is not None
            self.backup_log[channel].append(message)  # 26
        self.state = self.process(message, self.state)  # 27 to 30
