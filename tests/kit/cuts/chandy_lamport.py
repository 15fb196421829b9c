"""Consistent snapshots of Chandy and Lamport: thesis, algorithm 3. Line numbers are those of the listing.

An execution has one snapshot. In a strongly connected graph any process can initiate it; in a stream process graph all
sources do, each at its epoch event (thesis, 3.2.4.4).
"""

from __future__ import annotations

from tests.kit.cuts.processes import Channel, Execution, Marker, Message, Process, Processed


class ChandyLamport(Process):
    def __init__(self, name: str, execution: Execution) -> None:
        super().__init__(name, execution)  # 1
        self.s: tuple[Processed, ...] = ()  # 2
        self.recording: set[Channel] = set()  # 3, Recorded: the channels under logging
        self.s_star: tuple[Processed, ...] | None = None  # 4
        self.m: dict[Channel, list[Message]] = {channel: [] for channel in self.inputs}
        self._epoch = 0

    def begin(self, state: tuple[Processed, ...]) -> None:
        self.s = state

    def on_message(self, channel: Channel | None, message: Message) -> None:  # 5, 7
        if channel in self.recording:
            assert channel is not None
            self.m[channel].append(message)  # 8
        self.s = self.process(message, self.s)  # 6, 9

    def on_marker(self, channel: Channel, marker: Marker) -> None:  # 10
        if self.s_star is None:  # 11
            self.start_recording(marker)  # 12
        self.recording.discard(channel)  # 13
        if not self.recording:  # 14
            self._record()  # 15

    def on_epoch(self, epoch: int) -> None:  # 16, <snapshot> on csnap
        if self.s_star is None:  # with several initiators a marker can arrive first
            self.start_recording(Marker(epoch))  # 17
            if not self.recording:  # 18
                self._record()  # 19

    def start_recording(self, marker: Marker) -> None:  # 20
        self._epoch = marker.epoch
        self.s_star = self.s  # 21
        self.send_marker(marker)  # 22, 23
        self.recording = set(self.inputs)  # 24

    def _record(self) -> None:
        assert self.s_star is not None
        self.record(self._epoch, self.s_star, self.m)
