"""From the places of the exported application to those of the new one: what is mapped, and what has to be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epochal.contracts.backend import names_place
from epochal.contracts.configuration import Parameters
from epochal.errors import InvalidInput
from epochal.pipeline.description import GraphDescription
from epochal.wire.bundles import ImportApplication, SinkMove, SourcePosition

_BROKERS = "servers"


class MappingNeeded(InvalidInput):
    """The import has to be told where its sinks write, or where its sources go on."""

    slug = "mapping-needed"


def mapped(parameters: Parameters, request: ImportApplication) -> dict[str, Any]:
    """The bundle's parameters with old places replaced, and the given ones over them. Raises ``InvalidInput``."""
    used: set[str] = set()
    replaced = {name: _replaced(value, request.map, used) for name, value in parameters.items()}
    unused = sorted(request.map.keys() - used)
    if unused:
        raise InvalidInput(
            f"No parameter of the bundle has the value {unused[0]!r}, which map names. Its parameters are "
            f"{parameters!r}; what is not a parameter cannot be mapped."
        )
    return {**replaced, **request.parameters}


def sink_moves(before: GraphDescription, after: GraphDescription, request: ImportApplication) -> list[SinkMove]:
    """Each sink of the new application. One that would write where the old one does needs a word."""
    taken = set(before.sinks.values())
    unknown = sorted(set(request.keep) - after.sinks.keys())
    if unknown:
        raise InvalidInput(f"keep names {unknown[0]!r}; the pipeline's sinks are {', '.join(sorted(after.sinks))}.")
    return [
        SinkMove(
            sink=name,
            was=before.sinks.get(name, ""),
            becomes=target,
            needs_mapping=(names_place(target) and target in taken and not request.shadow and name not in request.keep),
        )
        for name, target in sorted(after.sinks.items())
    ]


def source_positions(
    before: GraphDescription, after: GraphDescription, request: ImportApplication
) -> list[SourcePosition]:
    """Each source of the new application. With other brokers, the offsets of the old ones mean nothing."""
    was = _sources(before)
    now = _sources(after)
    for name in request.sources:
        if name not in now:
            raise InvalidInput(f"sources names {name!r}; the pipeline's sources are {', '.join(sorted(now))}.")
        if _BROKERS not in now[name]:
            raise InvalidInput(f"Source {name!r} does not read from Kafka: it goes on where the snapshot says.")
    return [
        SourcePosition(
            source=name,
            was=was.get(name, {}),
            becomes=description,
            at=request.sources[name].at if name in request.sources else None,
            needs_mapping=(
                name in was and was[name].get(_BROKERS) != description.get(_BROKERS) and name not in request.sources
            ),
        )
        for name, description in sorted(now.items())
    ]


def needs(sinks: list[SinkMove], sources: list[SourcePosition], parameters: Parameters) -> list[str]:
    """What has to be said before it can be imported, in sentences."""
    found = [
        f"Sink {move.sink!r} would write to {move.becomes}, as the exported application does{_hint(move, parameters)}: "
        "name another place in the parameters, map it, have nothing written (shadow), or say that it stays (keep)."
        for move in sinks
        if move.needs_mapping
    ]
    return found + [
        f"Source {source.source!r} would read from other brokers ({source.becomes.get(_BROKERS)}): say at what time it "
        "goes on there (sources)."
        for source in sources
        if source.needs_mapping
    ]


def _hint(move: SinkMove, parameters: Parameters) -> str:
    """Parameters whose value is part of the target."""
    names = [
        f"{name}={value!r}" for name, value in parameters.items() if isinstance(value, str) and value in move.becomes
    ]
    return f" (parameter {', '.join(names)})" if names else ""


def _replaced(value: Any, places: Mapping[str, str], used: set[str]) -> Any:
    match value:
        case str() if value in places:
            used.add(value)
            return places[value]
        case list():
            return [_replaced(item, places, used) for item in value]
        case dict():
            return {name: _replaced(item, places, used) for name, item in value.items()}
    return value


def _sources(graph: GraphDescription) -> dict[str, dict[str, Any]]:
    return {node.name: node.description for node in graph.nodes if node.type == "source"}
