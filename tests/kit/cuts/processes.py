"""The system model: processes that send each other messages through FIFO channels (thesis, 3.2.1 and 3.3.1).

An execution is deterministic except for its schedule: in each step one process takes its next input, or the first
message of one of its channels. The computation of a process is the same for all algorithms: it records the message in
its state and sends one message into each of its output channels. Every state therefore shows the events that it
reflects, and the set of messages does not depend on the schedule.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tests.kit.cuts.traces import Event, Mark, Trace


@dataclass(frozen=True)
class Message:
    """``path``: the originating input, then the receiving processes. ``rounds``: the number of loops it has closed."""

    path: tuple[str, ...]
    rounds: int = 0

    def __str__(self) -> str:
        return "›".join(self.path)


@dataclass(frozen=True)
class Marker:
    """``⊙_n``; in ABS a stage barrier."""

    epoch: int


@dataclass(frozen=True)
class EpochEvent:
    """``<ep|n>``: the input of a source that ends its epoch n."""

    epoch: int


Input = Message | EpochEvent


@dataclass(frozen=True, order=True)
class Channel:
    """``c_pq``. ``closes_loop``: a back edge, or the phantom channel from a loop's tail to its head."""

    sender: str
    receiver: str
    closes_loop: bool = False

    def __str__(self) -> str:
        return f"{self.sender}→{self.receiver}"


@dataclass(frozen=True)
class ProcessGraph:
    """``G = (Π, E)``. ``heads``: the sources that represent the heads of loops.

    ``initiators``: the processes that initiate a snapshot; by default all sources.
    """

    channels: tuple[Channel, ...]
    heads: frozenset[str] = frozenset()
    initiators: frozenset[str] = frozenset()

    @property
    def processes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for channel in self.channels for name in (channel.sender, channel.receiver)))

    @property
    def sources(self) -> tuple[str, ...]:
        """Processes without inputs, and the heads of loops: the initiators 𝔸 of definition 3.2.6."""
        if self.initiators:
            return tuple(name for name in self.processes if name in self.initiators)
        return tuple(name for name in self.processes if name in self.heads or not self.inputs(name))

    def inputs(self, process: str) -> tuple[Channel, ...]:
        return tuple(channel for channel in self.channels if channel.receiver == process)

    def outputs(self, process: str) -> tuple[Channel, ...]:
        return tuple(channel for channel in self.channels if channel.sender == process)

    def reaches(self, process: str) -> set[str]:
        """Definition 3.2.4: the processes that ``process`` reaches."""
        found: set[str] = set()
        pending = [process]
        while pending:
            for channel in self.outputs(pending.pop()):
                if channel.receiver not in found:
                    found.add(channel.receiver)
                    pending.append(channel.receiver)
        return found

    @property
    def is_strongly_connected(self) -> bool:
        """Definition 3.2.5."""
        return all(self.reaches(process) >= set(self.processes) for process in self.processes)


@dataclass(frozen=True)
class Processed:
    """``<proc, m, M>``: one action of a process upon one message."""

    process: str
    message: Message

    def __str__(self) -> str:
        return f"{self.process} processes {self.message}"


@dataclass
class Snapshot:
    """``S_C = (Π_C, M_C)``: by process, the events that its recorded state reflects, and the logged messages."""

    states: dict[str, tuple[Processed, ...]] = field(default_factory=dict)
    in_transit: dict[Channel, tuple[Message, ...]] = field(default_factory=dict)

    @property
    def cut(self) -> set[Event]:
        return {event for state in self.states.values() for event in state}


@dataclass(frozen=True)
class Step:
    """A step as it is drawn. ``kind``: a message, epoch event or marker was taken, or a state was recorded."""

    process: str
    kind: Literal["message", "epoch", "marker", "record"]
    label: str
    event: Event | None = None


class Process(ABC):
    """One process of an algorithm. Subclasses are the algorithms, with the names of the papers."""

    def __init__(self, name: str, execution: Execution) -> None:
        self.name = name
        self.inputs = execution.graph.inputs(name)
        self.outputs = execution.graph.outputs(name)
        self.execution = execution

    def begin(self, state: tuple[Processed, ...]) -> None:  # noqa: B027
        """Start from the state of a snapshot; empty in a first execution."""

    def receives(self, channel: Channel) -> bool:
        """Return whether a message of ``channel`` can be delivered now."""
        return True

    @abstractmethod
    def on_message(self, channel: Channel | None, message: Message) -> None:
        """``<rcvd, m>`` on ``channel``; ``None`` for an input of a source."""

    @abstractmethod
    def on_marker(self, channel: Channel, marker: Marker) -> None:
        """``<rcvd, ⊙>`` on ``channel``."""

    @abstractmethod
    def on_epoch(self, epoch: int) -> None:
        """``<ep|n>``; sources only."""

    def process(self, message: Message, state: tuple[Processed, ...] = ()) -> tuple[Processed, ...]:
        """``process: (m, s_p, 𝕆_p) → s_p'``: record the message, and send one into each output channel."""
        event = self.execution.happened(self.name, message)
        for channel in self.outputs:
            rounds = message.rounds + channel.closes_loop
            if rounds <= self.execution.rounds:
                self.execution.send(channel, Message((*message.path, channel.receiver), rounds), event)
        return (*state, event)

    def send_marker(self, marker: Marker) -> None:
        for channel in self.outputs:
            self.execution.send(channel, marker)

    def record(
        self, epoch: int, state: Sequence[Processed], logged: Mapping[Channel, Sequence[Message]] | None = None
    ) -> None:
        """``<record | p, n, s_p, M_p>``."""
        self.execution.recorded(self.name, epoch, state, logged or {})


MakeProcess = Callable[[str, "Execution"], Process]


class Execution:
    """One execution of a graph under a schedule.

    ``inputs``: the inputs of each source, in order. ``rounds``: the maximum number of loops that a message closes.
    ``resumed``: the snapshot, and its epoch, to continue from; sources then take the later inputs.
    """

    def __init__(
        self,
        graph: ProcessGraph,
        make: MakeProcess,
        inputs: Mapping[str, Sequence[Input]],
        rounds: int = 1,
        one_at_a_time: bool = False,
        resumed: tuple[int, Snapshot] | None = None,
    ) -> None:
        self.graph, self.rounds, self.one_at_a_time = graph, rounds, one_at_a_time
        self.channels: dict[Channel, deque[Message | Marker]] = {channel: deque() for channel in graph.channels}
        self.snapshots: dict[int, Snapshot] = defaultdict(Snapshot)
        self.steps: list[Step] = []
        self._events: dict[str, list[Event]] = {name: [] for name in graph.processes}
        self._productions: dict[Event, list[Event]] = defaultdict(list)
        self._returned: dict[Event, list[Event]] = defaultdict(list)
        self._inputs = {name: deque(inputs.get(name, ())) for name in graph.sources}
        self.processes = {name: make(name, self) for name in graph.processes}
        if resumed is not None:
            self._resume(*resumed)

    def _resume(self, epoch: int, snapshot: Snapshot) -> None:
        for name, process in self.processes.items():
            process.begin(snapshot.states[name])
        for channel, messages in snapshot.in_transit.items():
            self.channels[channel].extend(messages)
        for name, inputs in self._inputs.items():
            seen = {event.message for event in snapshot.states[name]}
            while (
                inputs and inputs[0] != EpochEvent(epoch) and (isinstance(inputs[0], EpochEvent) or inputs[0] in seen)
            ):
                inputs.popleft()
            if inputs and inputs[0] == EpochEvent(epoch):
                inputs.popleft()

    def run(self, schedule: Iterable[int]) -> Execution:
        """Follow ``schedule``, then always take the first action, until no action is left."""
        for choice in schedule:
            actions = self._actions()
            if not actions:
                return self
            actions[choice % len(actions)]()
        while actions := self._actions():
            actions[0]()
        return self

    @property
    def is_stuck(self) -> bool:
        """True if undeliverable messages are left after :meth:`run`."""
        return any(self.channels.values()) or any(self._inputs.values())

    @property
    def trace(self) -> Trace:
        return Trace(self._events, self._productions, self._returned)

    def _actions(self) -> list[Callable[[], None]]:
        found: list[Callable[[], None]] = []
        for name, inputs in self._inputs.items():
            if inputs and self._may_take(inputs[0]):
                found.append(lambda name=name: self._take(name))  # type: ignore[misc]
        for channel, messages in self.channels.items():
            if messages and self.processes[channel.receiver].receives(channel):
                found.append(lambda channel=channel: self._deliver(channel))  # type: ignore[misc]
        return found

    def _may_take(self, input: Input) -> bool:
        if not self.one_at_a_time or isinstance(input, Message):
            return True
        open = [epoch for epoch in self._opened if len(self.snapshots[epoch].states) < len(self.processes)]
        return all(epoch >= input.epoch for epoch in open)

    @property
    def _opened(self) -> set[int]:
        return {event.epoch for events in self._events.values() for event in events if isinstance(event, Mark)}

    def _take(self, name: str) -> None:
        input = self._inputs[name].popleft()
        if isinstance(input, Message):
            self.processes[name].on_message(None, input)
            return
        mark = Mark(name, input.epoch)
        self._events[name].append(mark)
        self.steps.append(Step(name, "epoch", f"ep{input.epoch}", mark))
        self.processes[name].on_epoch(input.epoch)

    def _deliver(self, channel: Channel) -> None:
        message = self.channels[channel].popleft()
        receiver = self.processes[channel.receiver]
        if isinstance(message, Marker):
            self.steps.append(Step(channel.receiver, "marker", f"○{channel.sender}"))
            receiver.on_marker(channel, message)
        else:
            receiver.on_message(channel, message)

    def send(self, channel: Channel, message: Message | Marker, event: Processed | None = None) -> None:
        """Send a message (``<send, m>``), produced by the action ``event``."""
        self.channels[channel].append(message)
        if event is not None and isinstance(message, Message):
            kind = self._returned if channel.closes_loop else self._productions
            kind[event].append(Processed(channel.receiver, message))

    def happened(self, process: str, message: Message) -> Processed:
        event = Processed(process, message)
        self._events[process].append(event)
        self.steps.append(Step(process, "message", message.path[0], event))
        return event

    def recorded(
        self, process: str, epoch: int, state: Sequence[Processed], logged: Mapping[Channel, Sequence[Message]]
    ) -> None:
        self.steps.append(Step(process, "record", "■"))
        snapshot = self.snapshots[epoch]
        snapshot.states.setdefault(process, tuple(state))
        for channel, messages in logged.items():
            snapshot.in_transit.setdefault(channel, tuple(messages))
