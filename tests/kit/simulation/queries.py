"""Standing queries in the simulation: random commands, and the queries expected in each epoch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from epochal.contracts.catalog import Directive, QueryCommand
from epochal.declarations.intervals import DAY
from epochal.engine.position import Position
from epochal.engine.standing_queries import StandingQueries
from epochal.operators.standing_queries.plan import StandingQueriesOperator
from epochal.pipeline.graph import OperatorNode
from epochal.snapshots.manifest import Manifest
from epochal.standing_queries.active import decoded
from epochal.standing_queries.binding import bound
from epochal.standing_queries.query import DEFAULT
from tests.kit.simulation.pipeline import World

COMMANDS_PER_EPOCH: Final = 0.15
_TEXT: Final = "SELECT count(*) AS n WINDOW '1 minute'"
_NODE: Final = OperatorNode(1, (), StandingQueriesOperator("queries", "at", DEFAULT, DAY))
NODES: Final = (_NODE,)
"""The operator nodes of the graph; the simulated tasks answer no query."""


def next_command(chance: random.Random, before: Sequence[QueryCommand]) -> QueryCommand:
    """Return a random next command: it adds a query, or changes one that can be dropped or unknown."""
    number = len(before) + 1
    if not before or chance.random() < 0.5:
        query = bound(_TEXT, {"at": "timestamp"})
        return QueryCommand(
            number=number, kind="add", query=number, by="ada", operator=_NODE.name, text=_TEXT, bound=query.json
        )
    kind = chance.choice(("pause", "resume", "drop"))
    return QueryCommand(number=number, kind=kind, query=chance.randrange(1, number + 1), by="ada")


def deliver(queries: StandingQueries, world: World, position: Position) -> None:
    """Deliver all unanswered commands, as the control plane does with every heartbeat."""
    for command in world.commands:
        if command.number not in world.answered:
            queries.take(Directive(id=str(command.number), kind="query", arguments=command.model_dump()))
    for directive, head, failure in queries.answers(position.head, position.snapshot):
        assert head is not None  # an epoch has carried it out
        world.answered.setdefault(int(directive), (head.epoch, failure))


class Commands:
    """The expected effects of commands, epoch by epoch."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._states: dict[int, str] = {}
        self.through = 0

    def wrong(self, manifest: Manifest) -> list[str]:
        """Return the errors in the queries of the next epoch and in the answers to its commands."""
        queries = manifest.conditions.queries
        now = 0 if queries is None else queries.through
        if now < self.through:
            return [f"epoch {manifest.epoch} has carried out {now} commands, its parent had {self.through}"]
        found = [
            problem
            for command in self._world.commands[self.through : now]
            for problem in self._answer(command, manifest)
        ]
        self.through = now
        file = manifest.queries
        running = () if file is None else decoded(self._world.store.read_file(file, "the simulation")).queries
        states = {each.id: each.state for each in running}
        if states != self._states:
            found.append(f"epoch {manifest.epoch} runs with the queries {states}, not with {self._states}")
        return found

    def _answer(self, command: QueryCommand, manifest: Manifest) -> list[str]:
        """Carry out a command and compare with its answer; at the end an answer can still be in transit."""
        refused = command.kind != "add" and command.query not in self._states
        if command.kind == "drop":
            self._states.pop(command.query, None)
        elif not refused:
            self._states[command.query] = "paused" if command.kind == "pause" else "active"
        if command.number not in self._world.answered:
            return []
        epoch, failure = self._world.answered[command.number]
        if (epoch, failure is not None) == (manifest.epoch, refused):
            return []
        return [f"command {command} of epoch {manifest.epoch} was answered with {failure} in epoch {epoch}"]
