"""The gate: a dependency of the whole app, before every endpoint. What does not say what it needs is refused."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request
from starlette.requests import HTTPConnection

from epochal.errors import Forbidden, OptionError
from epochal.service.api.access import access_of, is_fenced_within
from epochal.service.api.auditing import note_caller
from epochal.service.api.parameters import check_parameters
from epochal.service.api.project_paths import project_in
from epochal.service.api.rates import rates_of
from epochal.service.domain.addresses import is_loopback
from epochal.service.domain.permissions import Access, Principal
from epochal.service.domain.settings import Settings
from epochal.service.runtime.authenticator import Authenticator, bearer
from epochal.service.runtime.drivers import DriverService

_FROM_OTHER_SITES = ("cross-site", "same-site")


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
    note_caller(request.scope)
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
