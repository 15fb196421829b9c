"""The gate: middleware that checks each request before its endpoint runs. An endpoint without declared access is
refused.

It decides by the head of a request alone. Before the caller is admitted, no byte of the body is read, and no answer is
replayed for an Idempotency-Key. It also limits the rate of calls of a token, and refuses unknown query parameters.
"""

from __future__ import annotations

import logging
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
from epochal.errors import EpochalError, Forbidden, OptionError, TooManyRequests, Unauthenticated
from epochal.service.api.access import access_of, is_audited, is_fenced_within, is_login, is_metered
from epochal.service.api.bodies import parse_large_bodies_in_threads
from epochal.service.api.problems import epochal_problem, validation_problem
from epochal.service.api.project_paths import project_in
from epochal.service.api.session_cookies import check_csrf, cookie_in, private, session_of, set_session
from epochal.service.domain.permissions import Access, Principal
from epochal.service.domain.setting_sections import Limits
from epochal.service.domain.settings import Settings
from epochal.service.runtime.authenticator import Authenticator, bearer
from epochal.service.runtime.drivers import DriverService

log = logging.getLogger("epochal.access")

_FROM_OTHER_SITES = ("cross-site", "same-site")
_ROUTED: Final = "epochal.route"
"""Key in the scope: the route that the gate has found, so that the router need not search again."""

Check = Callable[[Request], Awaitable[None]]
"""Raises an error to refuse the request, which has no body yet."""
Refused = Callable[[Scope, int], Awaitable[None]]
"""Called with the status of a refusal before it is answered."""


async def _unnoted(_scope: Scope, _status: int) -> None:
    pass


class Gate:
    """ASGI middleware. Requests without an endpoint pass: the router answers them without reading a body."""

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
                await self._app(scope, receive, private(send) if session_of(request) else send)
                return
            await self._refused(scope, answer.status_code)
            await answer(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _find_route(scope: Scope) -> bool:
    """Find the route, and store its endpoint and path parameters in the scope. Returns whether one exists."""
    for route in scope["app"].routes:
        match, found = route.matches(scope)
        if match is Match.FULL:
            scope.update(found)
            scope[_ROUTED] = route
            return True
    return False


def add_routes(app: FastAPI, routes: Iterable[BaseRoute]) -> None:
    """Add the routes to ``app`` unchanged: ``include_router`` would match each route again for every request."""
    for route in routes:
        if isinstance(route, APIRoute):
            parse_large_bodies_in_threads(route)
        app.router.routes.append(route)
    app.router.middleware_stack = _Routed(app.router.app)


class _Routed:
    """Replaces the router for requests whose route is known."""

    def __init__(self, router: ASGIApp) -> None:
        self._router = router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route: BaseRoute | None = scope.pop(_ROUTED, None)
        await (self._router if route is None else route.handle)(scope, receive, send)


async def gate(request: Request) -> None:
    """Check token, role and rate, then the query parameters. Raises ``Unauthenticated``, ``Forbidden`` or
    ``TooManyRequests``."""
    access = access_of(request.scope.get("endpoint"))
    if access is Access.PUBLIC:
        return
    if access in (Access.DRIVER, Access.POD):
        await driver_gate(request)
        return
    authenticator: Authenticator = request.app.state.control_plane.authenticator
    if not authenticator.enabled:
        _refuse_foreign_pages(request)
    elif is_login(request.scope.get("endpoint")):
        rates_of(request).count_login(request.scope)
    principal = await _authenticated(request, authenticator)
    if authenticator.enabled:
        rates_of(request).count(request.scope, principal, request.scope.get("endpoint"))
    check_csrf(request)
    _check_role(request, access, principal)
    check_parameters(request)


def _check_role(request: Request, access: Access | None, principal: Principal) -> None:
    project = project_in(request.scope)
    remedy = "for that role" if principal.person else "for another token"
    if access is Access.MEMBER:
        if not principal.roles:
            raise Forbidden(f"{principal.described(project)}, nor in another one. Ask an administrator {remedy}.")
    elif access is None or access.role is None:
        raise Forbidden("This endpoint declares no required role and is therefore closed.")
    elif not principal.may(access.role, project):
        raise Forbidden(
            f"{principal.described(project)}; this call requires the role {access.role}. Ask an administrator {remedy}."
        )


async def is_still_admitted(request: Request) -> bool:
    """Return whether the gate would admit the request now, and not after its token or session has ended or lost its
    role.

    For answers that last. A session is in use while one is sent. ``True`` if this cannot be decided now.
    """
    try:
        principal = await _authenticated(request, request.app.state.control_plane.authenticator)
        _check_role(request, access_of(request.scope.get("endpoint")), principal)
    except (Unauthenticated, Forbidden):
        return False
    except EpochalError as error:
        log.warning("a stream continues, although its caller could not be authenticated again: %s", error)
    return True


async def _authenticated(request: Request, authenticator: Authenticator) -> Principal:
    """The caller: the bearer of the token, or without one the owner of the session."""
    authorization, cookie = request.headers.get("authorization"), None
    if authorization is None and authenticator.enabled:
        cookie = cookie_in(request)
    if cookie is None and authenticator.enabled and is_login(request.scope.get("endpoint")):
        verified = await authenticator.login(authorization)
        request.state.login, principal = verified, verified.principal
    elif cookie is None:
        principal = await authenticator.user(authorization)
    else:
        known = await authenticator.sessions.user(cookie)
        set_session(request, known)
        principal = known.principal
    request.state.principal = principal
    return principal


async def driver_gate(request: Request) -> None:
    """Like :func:`gate`, for an app that answers only drivers."""
    endpoint = request.scope.get("endpoint")
    access = access_of(endpoint)
    if access is Access.PUBLIC:
        return
    if access not in (Access.DRIVER, Access.POD):
        raise Forbidden("This endpoint declares no required access and is therefore closed.")
    token = bearer(request.headers.get("authorization"))
    path = request.path_params
    if access is Access.POD:
        request.state.pod = await drivers_of(request).pod(token)
        return
    await drivers_of(request).authenticate(token, path["execution"], path["attempt"], is_fenced_within(endpoint))


def drivers_of(connection: HTTPConnection) -> DriverService:
    """The service that answers drivers in this process."""
    drivers: DriverService = connection.app.state.drivers
    return drivers


def _refuse_foreign_pages(request: Request) -> None:
    """Refuse requests of foreign web pages: without tokens, any page could make its reader's browser call this API.

    A page whose own name resolves to 127.0.0.1 is recognised by ``Host``, all others by ``Origin`` or, where the
    browser omits it, by ``Sec-Fetch-Site``. Programs send neither of the last two.
    """
    if not is_loopback(request.url.hostname or ""):
        raise Forbidden("Authentication is off: only requests to a loopback address are answered.")
    origins = request.headers.getlist("origin")
    if not all(_is_own(origin) for origin in origins) or (
        not origins and request.headers.get("sec-fetch-site") in _FROM_OTHER_SITES
    ):
        raise Forbidden("Authentication is off: requests of web pages from other machines are refused.")


def _is_own(origin: str) -> bool:
    """``null`` is the origin of sandboxed frames and local files, of any author."""
    try:
        return is_loopback(urlsplit(origin).hostname or "")
    except ValueError:
        return False


def check_binding(settings: Settings) -> None:
    """Raise ``OptionError`` if other machines could reach the control plane without authentication."""
    if not settings.authentication and not is_loopback(settings.host):
        raise OptionError(
            f"Without authentication the control plane cannot listen on {settings.host!r}: any machine could submit "
            "code. Listen on 127.0.0.1, or leave authentication on."
        )


def _caller(request: Request) -> Principal:
    principal: Principal = request.state.principal  # set by the gate
    return principal


Caller = Annotated[Principal, Depends(_caller)]
"""The caller, for endpoints that record it."""


_WITH_A_BODY = ("POST", "PUT", "PATCH")


def check_parameters(request: Request) -> None:
    """Raise ``RequestValidationError`` with each query parameter that the endpoint does not have, and those that it
    has."""
    if not request.scope["query_string"]:
        return
    route = request.scope.get("route")
    if not isinstance(route, APIRoute) or not route.include_in_schema:
        return  # accepts any parameter
    known = set(_names(route.dependant))
    unknown = [name for name in request.query_params if name not in known]
    if unknown:
        message = f"unknown parameter; {_instead(known, request.method)}"
        raise RequestValidationError(
            [{"type": "unknown_parameter", "loc": ("query", name), "msg": message} for name in unknown]
        )


def _instead(known: set[str], method: str) -> str:
    in_the_body = method in _WITH_A_BODY
    if not known:
        return "send its value in the body" if in_the_body else "this endpoint has no parameters"
    there = f"the endpoint has {', '.join(sorted(known))}"
    return f"{there}; send everything else in the body" if in_the_body else there


def _names(dependant: Dependant) -> Iterator[str]:
    for field in dependant.query_params:
        yield field.alias
    for dependency in dependant.dependencies:
        yield from _names(dependency)


_KEPT: Final = 10_000
_COUNTED: Final = "calls_counted"
OVER_RATE: Final = "over_rate"
"""Key in a request's state: the request was refused for its rate. Such requests are not audited, since they would
fill the log."""


class Buckets:
    """Token buckets of one event loop. ``rate``: calls per second; ``most``: maximum burst."""

    def __init__(self, rate: float, most: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._most = most
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}
        """By caller: the remaining calls, and when they were counted."""

    def take(self, who: str) -> float:
        """Return 0, or the number of seconds until a call is available."""
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

    def count_login(self, scope: Scope) -> None:
        """Count an attempt to log in, by address, like the mutating calls of a token. Raises ``TooManyRequests``."""
        client = scope.get("client")
        address = "" if client is None else str(client[0])
        wait = self._changes.take(f"login from {address}")
        if wait:
            scope["state"][OVER_RATE] = True
            raise TooManyRequests(
                f"There are more than {self._limits.changes_per_second:g} attempts to log in per second from the "
                f"address {address}, on average. Try again later.",
                math.ceil(wait),
            )

    def count(self, scope: Scope, principal: Principal, endpoint: object) -> None:
        """Count the request once. Raises ``TooManyRequests``."""
        if scope["state"].get(_COUNTED) or not is_metered(endpoint):
            return
        scope["state"][_COUNTED] = True
        changes = is_audited(endpoint)
        wait = self._calls.take(principal.id) or (self._changes.take(principal.id) if changes else 0.0)
        if wait:
            scope["state"][OVER_RATE] = True
            rate, of = self._limits.calls_per_second, "calls"
            if changes:
                rate, of = self._limits.changes_per_second, "mutating calls"
            who = principal.name if principal.person else f"The token {principal.name!r}"
            raise TooManyRequests(
                f"{who} exceeds the limit of {rate:g} {of} per second on average. Nothing was done; try again later.",
                math.ceil(wait),
            )


def rates_of(connection: HTTPConnection) -> Rates:
    """The rate limits of this process."""
    rates: Rates = connection.app.state.rates
    return rates
