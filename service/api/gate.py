"""The gate: middleware of the whole app, before every endpoint. What does not say what it needs is refused.

It decides by the head of a request alone: no byte of a body is taken, and nothing is repeated for an Idempotency-Key,
before the caller may make the call.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Annotated, Final
from urllib.parse import urlsplit

from fastapi import Depends, FastAPI, Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.requests import HTTPConnection
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from epochal.addresses import is_loopback
from epochal.errors import EpochalError, Forbidden, OptionError, TooManyRequests
from epochal.service.api.access import access_of, changes_something, is_fenced_within, is_metered
from epochal.service.api.bodies import parse_large_bodies_in_threads
from epochal.service.api.problems import epochal_problem, validation_problem
from epochal.service.api.project_paths import project_in
from epochal.service.domain.permissions import Access, Principal
from epochal.service.domain.settings import Limits, Settings
from epochal.service.runtime.authenticator import Authenticator, bearer
from epochal.service.runtime.drivers import DriverService

_FROM_OTHER_SITES = ("cross-site", "same-site")
_ROUTED: Final = "epochal.route"
"""In a scope: the route that the gate has found, so that the router need not look for it again."""

Check = Callable[[Request], Awaitable[None]]
"""Raises what refuses a request; it has no body."""
Refused = Callable[[Scope, int], Awaitable[None]]
"""Called with the status of a refusal before it is answered."""


async def _unnoted(_scope: Scope, _status: int) -> None:
    pass


class Gate:
    """ASGI middleware. Requests of no endpoint pass: the router answers them, and reads nothing of them."""

    def __init__(self, app: ASGIApp, check: Check, refused: Refused = _unnoted) -> None:
        self._app = app
        self._check = check
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _find_route(scope):
            request = Request(scope)
            try:
                await self._check(request)
            except EpochalError as error:
                answer = await epochal_problem(request, error)
            except RequestValidationError as error:
                answer = await validation_problem(request, error)
            else:
                await self._app(scope, receive, send)
                return
            await self._refused(scope, answer.status_code)
            await answer(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _find_route(scope: Scope) -> bool:
    """Whether there is one; then its endpoint and the parameters in the path are in the scope."""
    for route in scope["app"].routes:
        match, found = route.matches(scope)
        if match is Match.FULL:
            scope.update(found)
            scope[_ROUTED] = route
            return True
    return False


def add_routes(app: FastAPI, routes: Iterable[BaseRoute]) -> None:
    """Let ``app`` have these routes as they are: ``include_router`` would look for each again for every request."""
    for route in routes:
        if isinstance(route, APIRoute):
            parse_large_bodies_in_threads(route)
        app.router.routes.append(route)
    app.router.middleware_stack = _Routed(app.router.app)


class _Routed:
    """In place of the router, for requests whose route is known."""

    def __init__(self, router: ASGIApp) -> None:
        self._router = router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route: BaseRoute | None = scope.pop(_ROUTED, None)
        await (self._router if route is None else route.handle)(scope, receive, send)


async def gate(request: Request) -> None:
    """Returns, or raises ``Unauthenticated``, ``Forbidden``, ``TooManyRequests``; then the request's parameters are
    checked."""
    access = access_of(request.scope.get("endpoint"))
    if access is Access.PUBLIC:
        return
    if access in (Access.DRIVER, Access.POD):
        await driver_gate(request)
        return
    authenticator: Authenticator = request.app.state.control_plane.authenticator
    authorization = request.headers.get("authorization")
    if not authenticator.enabled:
        _refuse_foreign_pages(request)
    principal = await authenticator.user(authorization)
    request.state.principal = principal
    if authenticator.enabled:
        rates_of(request).count(request.scope, principal, request.scope.get("endpoint"))
    project = project_in(request.scope)
    remedy = "for that role" if principal.person else "for another token"
    if access is Access.MEMBER:
        if not principal.roles:
            raise Forbidden(f"{principal.described(project)}, nor in another one. Ask an administrator {remedy}.")
    elif access is None or access.role is None:
        raise Forbidden("This endpoint does not say which role it needs, and is closed therefore.")
    elif not principal.may(access.role, project):
        raise Forbidden(f"{principal.described(project)}; this needs {access.role}. Ask an administrator {remedy}.")
    check_parameters(request)


async def driver_gate(request: Request) -> None:
    """As :func:`gate`, of an app that answers drivers alone: there is nobody else's token."""
    endpoint = request.scope.get("endpoint")
    access = access_of(endpoint)
    if access is Access.PUBLIC:
        return
    if access not in (Access.DRIVER, Access.POD):
        raise Forbidden("This endpoint does not say what it needs, and is closed therefore.")
    token = bearer(request.headers.get("authorization"))
    path = request.path_params
    if access is Access.POD:
        request.state.pod = await drivers_of(request).pod(token)
        return
    await drivers_of(request).authenticate(token, path["execution"], path["attempt"], is_fenced_within(endpoint))


def drivers_of(connection: HTTPConnection) -> DriverService:
    """What answers drivers in this process."""
    drivers: DriverService = connection.app.state.drivers
    return drivers


def _refuse_foreign_pages(request: Request) -> None:
    """Without tokens, any web page could command its reader's browser to call this API.

    One that points its own name at 127.0.0.1 is seen by the ``Host``, any other by its ``Origin``, or, where a browser
    leaves that out, by ``Sec-Fetch-Site``. Programs send neither of the last two.
    """
    if not is_loopback(request.url.hostname or ""):
        raise Forbidden("Authentication is off; then only requests to a loopback address are answered.")
    origins = request.headers.getlist("origin")
    if not all(_is_own(origin) for origin in origins) or (
        not origins and request.headers.get("sec-fetch-site") in _FROM_OTHER_SITES
    ):
        raise Forbidden("Authentication is off; then requests of web pages from other machines are not answered.")


def _is_own(origin: str) -> bool:
    """``null`` is the origin of sandboxed frames and of local files: anybody's."""
    try:
        return is_loopback(urlsplit(origin).hostname or "")
    except ValueError:
        return False


def check_binding(settings: Settings) -> None:
    """Raises ``OptionError`` when the control plane would be open to other machines without authentication."""
    if not settings.authentication and not is_loopback(settings.host):
        raise OptionError(
            f"Without authentication the control plane does not listen on {settings.host!r}, since anybody could "
            "submit code. Listen on 127.0.0.1, or leave authentication on."
        )


def _caller(request: Request) -> Principal:
    principal: Principal = request.state.principal  # the gate has put it there
    return principal


Caller = Annotated[Principal, Depends(_caller)]
"""Who is calling, for endpoints that write it down."""


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


_KEPT: Final = 10_000
_COUNTED: Final = "calls_counted"
OVER_RATE: Final = "over_rate"
"""In a request's state: it was refused for its rate. It is not in the audit log, which it would fill."""


class Buckets:
    """Of one event loop. ``rate``: calls a second; ``most``: how many at once, after a while without any."""

    def __init__(self, rate: float, most: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._most = most
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}
        """By whom: how much was left, and when."""

    def take(self, who: str) -> float:
        """0, or how many seconds it takes until there is one again."""
        moment = self._clock()
        left = self._now(who, moment)
        if left < 1:
            return (1 - left) / self._rate
        if len(self._left) >= _KEPT:
            self._left = {name: at for name, at in self._left.items() if self._now(name, moment) < self._most}
        self._left[who] = left - 1, moment
        return 0.0

    def _now(self, who: str, moment: float) -> float:
        left, at = self._left.get(who, (self._most, moment))
        return min(self._most, left + (moment - at) * self._rate)


class Rates:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._calls = Buckets(limits.calls_per_second, limits.calls_per_second * limits.burst_seconds)
        self._changes = Buckets(limits.changes_per_second, limits.changes_per_second * limits.burst_seconds)

    def count(self, scope: Scope, principal: Principal, endpoint: object) -> None:
        """Once for each request, whoever comes first. Raises ``TooManyRequests``."""
        if scope["state"].get(_COUNTED) or not is_metered(endpoint):
            return
        scope["state"][_COUNTED] = True
        changes = changes_something(endpoint)
        wait = self._calls.take(principal.id) or (self._changes.take(principal.id) if changes else 0.0)
        if wait:
            scope["state"][OVER_RATE] = True
            rate, of = self._limits.calls_per_second, "calls"
            if changes:
                rate, of = self._limits.changes_per_second, "calls that change something"
            who = principal.name if principal.person else f"The token {principal.name!r}"
            raise TooManyRequests(
                f"{who} makes more {of} than the {rate:g} a second that one token may, on average. "
                "Nothing was done; call again in a moment.",
                math.ceil(wait),
            )


def rates_of(connection: HTTPConnection) -> Rates:
    """Those of the process that answers."""
    rates: Rates = connection.app.state.rates
    return rates
