"""Standing queries in the simulation: commands that come now and then, and what an epoch has to run with."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Final

from epochal.contracts.catalog import Directive, QueryCommand
from epochal.declarations.intervals import DAY
from epochal.engine.standing import StandingQueries
from epochal.operators.standing_queries import StandingQueriesOperator
from epochal.pipeline.graph import OperatorNode
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.store import SnapshotStore
from epochal.standing.active import decoded
from epochal.standing.binding import bound
from epochal.standing.limits import DEFAULT

COMMANDS_PER_EPOCH: Final = 0.15
_TEXT: Final = "SELECT count(*) AS n WINDOW '1 minute'"
_NODE: Final = OperatorNode(1, (), StandingQueriesOperator("queries", "at", DEFAULT, DAY))
NODES: Final = (_NODE,)
"""Of the graph: the simulated tasks answer no query."""


def another(chance: random.Random, before: Sequence[QueryCommand]) -> QueryCommand:
    """What somebody asks for after these commands: to add a query, or to change one that may be gone already."""
    number = len(before) + 1
    if not before or chance.random() < 0.5:
        query = bound(_TEXT, {"at": "timestamp"})
        return QueryCommand(
            number=number, kind="add", query=number, by="ada", operator=_NODE.name, text=_TEXT, bound=query.json
        )
    kind = chance.choice(("pause", "resume", "drop"))
    return QueryCommand(number=number, kind=kind, query=chance.randrange(1, number), by="ada")


def deliver(queries: StandingQueries, commands: Iterable[QueryCommand], parent: Manifest | None) -> None:
    """As the control plane does it with every heartbeat: all that has not been carried out."""
    for command in commands:
        queries.take(Directive(id=str(command.number), kind="query", arguments=command.model_dump()))
    list(queries.answers(parent))


def wrong_queries(
    store: SnapshotStore, manifest: Manifest, through: int, commands: Sequence[QueryCommand]
) -> list[str]:
    """What is wrong with the queries of an epoch, whose parent had carried out the commands ``through`` this one."""
    now = (
        0 if manifest.conditions is None or manifest.conditions.queries is None else manifest.conditions.queries.through
    )
    if now < through:
        return [f"epoch {manifest.epoch} has carried out {now} commands, the one before had {through}"]
    expected: dict[int, str] = {}
    for command in commands[:now]:
        if command.kind == "add":
            expected[command.query] = "active"
        elif command.query in expected:
            expected[command.query] = "paused" if command.kind == "pause" else "active"
            if command.kind == "drop":
                del expected[command.query]
    file = manifest.queries
    found = {} if file is None else decoded(store.read_file(file, "the simulation")).queries
    states = {each.id: each.state for each in found}
    return [] if states == expected else [f"epoch {manifest.epoch} runs with the queries {states}, not with {expected}"]
