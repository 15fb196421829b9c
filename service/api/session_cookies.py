"""Cookies of browser sessions: their names and attributes, and the protection against forged requests (CSRF).

The cookie alone proves only that the browser is logged in, not that a page of the console sends the request. Requests
that may change something therefore also need a token in a header, which only pages that can read answers of this
control plane know.
"""

from __future__ import annotations

import math

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Send

from epochal.addresses import is_loopback
from epochal.errors import Forbidden
from epochal.service.domain.secrets import same
from epochal.service.runtime.browser_sessions import KnownSession
from epochal.wire.sessions import CSRF_HEADER

_NAME = "epochal-session"
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


def _plain_port(request: Request) -> int | None:
    """The port at which the browser reaches this control plane by http on its own machine; ``None`` elsewhere. There,
    cookies require https, which a proxy in front of the control plane may terminate."""
    try:
        url = request.url
        return (url.port or 80) if url.scheme == "http" and is_loopback(url.hostname or "") else None
    except ValueError:  # the header Host is not valid
        return None


def cookie_name(request: Request, name: str = _NAME) -> str:
    """``__Host-`` binds the cookie to https and to this host. Without https the port is added to the name, because
    browsers send cookies to all ports of a host: two control planes of one machine would overwrite each other's."""
    port = _plain_port(request)
    return f"__Host-{name}" if port is None else f"{name}-{port}"


def cookie_in(request: Request) -> str | None:
    """The session's secret that the browser has sent."""
    return cookie_of(request, _NAME)


def cookie_of(request: Request, name: str) -> str | None:
    """The value of a cookie that :func:`set_cookie` has set."""
    return request.cookies.get(cookie_name(request, name))


def set_cookie(request: Request, response: Response, value: str, seconds: float, name: str = _NAME) -> None:
    """Set a cookie for ``seconds``, which scripts cannot read and requests of other sites do not have, except for links
    to pages."""
    response.set_cookie(
        cookie_name(request, name),
        value,
        max_age=math.ceil(max(0.0, seconds)),
        path="/",
        secure=_plain_port(request) is None,
        httponly=True,
        samesite="lax",
    )


def delete_cookie(request: Request, response: Response, name: str = _NAME) -> None:
    set_cookie(request, response, "", 0, name)


def set_session(request: Request, known: KnownSession) -> None:
    request.state.session = known


def session_of(request: Request) -> KnownSession | None:
    """The session of this request; ``None`` if it was authenticated in another way."""
    known: KnownSession | None = getattr(request.state, "session", None)
    return known


def check_csrf(request: Request) -> None:
    """Raise ``Forbidden`` unless a request with a session only reads, or has the session's CSRF token."""
    known = session_of(request)
    if known is None or request.method in _SAFE_METHODS:
        return
    if not same(request.headers.get(CSRF_HEADER, ""), known.csrf_token):
        raise Forbidden(
            f"A request with a session's cookie requires the header {CSRF_HEADER} with the session's `csrf_token`, "
            "which GET /v1/session returns."
        )


def private(send: Send) -> Send:
    """Prevent caches from storing the answer for other callers: it depends on the cookie."""

    async def send_private(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.setdefault("cache-control", "private, no-cache")
            headers.add_vary_header("cookie")
        await send(message)

    return send_private
