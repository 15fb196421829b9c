"""Query parameters that an endpoint does not have: to leave them out without a word would answer another question."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

_WITH_A_BODY = ("POST", "PUT", "PATCH")


def check_parameters(request: Request) -> None:
    """Raises ``RequestValidationError`` naming each that the endpoint does not have, and saying what it has."""
    if not request.scope["query_string"]:
        return
    route = request.scope.get("route")
    if not isinstance(route, APIRoute) or not route.include_in_schema:
        return  # it is for whatever anybody asks
    known = set(_names(route.dependant))
    unknown = [name for name in request.query_params if name not in known]
    if unknown:
        message = f"there is no such parameter; {_instead(known, request.method)}"
        raise RequestValidationError(
            [{"type": "unknown_parameter", "loc": ("query", name), "msg": message} for name in unknown]
        )


def _instead(known: set[str], method: str) -> str:
    in_the_body = method in _WITH_A_BODY
    if not known:
        return "what is asked for stands in the body" if in_the_body else "leave it out, there is none here"
    there = f"there {'is' if len(known) == 1 else 'are'} {', '.join(sorted(known))}"
    return f"{there}, and the rest stands in the body" if in_the_body else there


def _names(dependant: Dependant) -> Iterator[str]:
    for field in dependant.query_params:
        yield field.alias
    for dependency in dependant.dependencies:
        yield from _names(dependency)
