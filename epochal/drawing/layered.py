"""Layered layout of a graph from left to right: each node stands right of its inputs, and no line crosses a node.

A long line passes each layer at a place of its own, as a node without width. Layers are ordered by the mean place of
their neighbours; heights follow the neighbours as closely as the distances allow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from epochal.drawing.lanes import topological

SWEEPS = 8
BETWEEN_LAYERS, BETWEEN_NODES, BETWEEN_LINES = 56.0, 22.0, 12.0


@dataclass(frozen=True)
class Size:
    """Size of a node in pixels. ``inputs``: indexes of other nodes."""

    width: float
    height: float
    inputs: tuple[int, ...] = ()


@dataclass(frozen=True)
class Box:
    """A placed node: left edge, centre and size."""

    left: float
    centre: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.left + self.width


@dataclass(frozen=True)
class Line:
    """A line between two nodes, through ``points`` in pairs: it is horizontal within a layer, that is from the first to
    the second point of a pair, and curved between pairs."""

    source: int
    target: int
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Placed:
    """A layout, from the origin on."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]


@dataclass
class _Slot:
    """A node, or the passage of a line through a layer (``node``: ``None``)."""

    node: int | None
    height: float
    before: list[int]
    after: list[int]
    centre: float = 0.0

    @property
    def margin(self) -> float:
        return (self.height + (BETWEEN_LINES if self.node is None else BETWEEN_NODES)) / 2


def place(sizes: Sequence[Size]) -> Placed:
    """Lay out nodes of any graph. Inputs that are unknown or close a cycle get no line."""
    order = topological([size.inputs for size in sizes])
    position = {node: index for index, node in enumerate(order)}
    inputs = {
        node: [each for each in dict.fromkeys(size.inputs) if position.get(each, len(order)) < position[node]]
        for node, size in enumerate(sizes)
    }
    layer: dict[int, int] = {}
    for node in order:
        layer[node] = 1 + max((layer[each] for each in inputs[node]), default=-1)
    _move_sources_right(order, inputs, layer)
    slots, layers, passages = _slots(sizes, order, inputs, layer)
    _order(slots, layers)
    _align(slots, layers)
    return _placed(sizes, layer, slots, layers, passages)


def _move_sources_right(order: Sequence[int], inputs: Mapping[int, list[int]], layer: dict[int, int]) -> None:
    """Nodes without inputs stand directly before their first reader."""
    for node in order:
        readers = [layer[each] for each in order if node in inputs[each]]
        if not inputs[node] and readers:
            layer[node] = min(readers) - 1


def _slots(
    sizes: Sequence[Size], order: Sequence[int], inputs: Mapping[int, list[int]], layer: Mapping[int, int]
) -> tuple[list[_Slot], list[list[int]], dict[tuple[int, int], list[int]]]:
    """Slots, their numbers by layer, and by line the numbers of the slots from its source to its target."""
    slots: list[_Slot] = []
    layers: list[list[int]] = [[] for _ in range(max(layer.values(), default=-1) + 1)]
    own: dict[int, int] = {}
    passages: dict[tuple[int, int], list[int]] = {}

    def add(slot: _Slot, at: int) -> int:
        slots.append(slot)
        layers[at].append(len(slots) - 1)
        return len(slots) - 1

    for node in order:
        way = {source: [own[source]] for source in inputs[node]}
        for source, through in way.items():
            for between in range(layer[source] + 1, layer[node]):
                through.append(add(_Slot(None, 0.0, [], []), between))
        own[node] = add(_Slot(node, sizes[node].height, [], []), layer[node])
        for source, through in way.items():
            through.append(own[node])
            passages[source, node] = through
            for left, right in pairwise(through):
                slots[left].after.append(right)
                slots[right].before.append(left)
    return slots, layers, passages


def _order(slots: Sequence[_Slot], layers: list[list[int]]) -> None:
    """Order each layer by the mean place of the neighbours, and keep the order with the fewest crossings."""
    best, fewest = [list(layer) for layer in layers], _crossings(slots, layers)
    for sweep in range(SWEEPS):
        if fewest == 0:
            break
        forward = sweep % 2 == 0
        for layer in layers if forward else reversed(layers):
            places = {slot: index for each in layers for index, slot in enumerate(each)}

            def mean(slot: int, places: Mapping[int, int] = places, forward: bool = forward) -> float:
                found = slots[slot].before if forward else slots[slot].after
                return sum(places[each] for each in found) / len(found) if found else float(places[slot])

            layer.sort(key=mean)
        crossings = _crossings(slots, layers)
        if crossings < fewest:
            best, fewest = [list(layer) for layer in layers], crossings
    layers[:] = best


def _crossings(slots: Sequence[_Slot], layers: Sequence[Sequence[int]]) -> int:
    places = {slot: index for layer in layers for index, slot in enumerate(layer)}
    total = 0
    for layer in layers:
        ends = [(places[slot], places[other]) for slot in layer for other in slots[slot].after]
        total += sum(one[0] < two[0] and one[1] > two[1] for one in ends for two in ends)
    return total


def _align(slots: Sequence[_Slot], layers: Sequence[Sequence[int]]) -> None:
    """Centres of all slots: close to their neighbours, and at least their margins apart."""
    for layer in layers:
        _spread(slots, layer, [0.0] * len(layer))
    for sweep in range(2 * SWEEPS):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            goals = []
            for slot in layer:
                both = slots[slot].before + slots[slot].after
                found = (slots[slot].before if sweep % 2 == 0 else slots[slot].after) if sweep < SWEEPS else both
                centres = [slots[each].centre for each in found or both]
                goals.append(sum(centres) / len(centres) if centres else slots[slot].centre)
            _spread(slots, layer, goals)


def _spread(slots: Sequence[_Slot], layer: Sequence[int], goals: Sequence[float]) -> None:
    """The centres with the least squared distance to the goals that keep the order and the margins.

    Without the margins this is isotonic regression: neighbours that would overlap form a block with their mean."""
    offsets, offset = [], 0.0
    for index, slot in enumerate(layer):
        if index:
            offset += slots[layer[index - 1]].margin + slots[slot].margin
        offsets.append(offset)
    blocks: list[tuple[float, int]] = []
    for goal, offset in zip(goals, offsets, strict=True):
        blocks.append((goal - offset, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (second, more), (first, some) = blocks.pop(), blocks.pop()
            blocks.append(((first * some + second * more) / (some + more), some + more))
    starts = [start for start, number in blocks for _ in range(number)]
    for slot, start, offset in zip(layer, starts, offsets, strict=True):
        slots[slot].centre = start + offset


def _placed(
    sizes: Sequence[Size],
    layer: Mapping[int, int],
    slots: Sequence[_Slot],
    layers: Sequence[Sequence[int]],
    passages: Mapping[tuple[int, int], Sequence[int]],
) -> Placed:
    top = min((slot.centre - slot.height / 2 for slot in slots), default=0.0)
    bottom = max((slot.centre + slot.height / 2 for slot in slots), default=0.0)
    lefts, widths, left = [], [], 0.0
    for members in layers:
        width = max(sizes[node].width for slot in members if (node := slots[slot].node) is not None)
        lefts.append(left)
        widths.append(width)
        left += width + BETWEEN_LAYERS
    boxes: dict[int, Box] = {}
    for slot in slots:
        if slot.node is not None:
            at, size = layer[slot.node], sizes[slot.node]
            indent = (widths[at] - size.width) / 2
            boxes[slot.node] = Box(lefts[at] + indent, slot.centre - top, size.width, size.height)
    lines = []
    for (source, target), through in passages.items():
        points = []
        for step, number in enumerate(through):
            at = layer[source] + step
            y = slots[number].centre - top
            begin = boxes[source].right if step == 0 else lefts[at]
            end = boxes[target].left if number == through[-1] else lefts[at] + widths[at]
            points += [(begin, y), (end, y)]
        lines.append(Line(source, target, tuple(points)))
    width = max((box.right for box in boxes.values()), default=0.0)
    return Placed(width, bottom - top, tuple(boxes[node] for node in range(len(sizes))), tuple(lines))
