"""``/v1/session`` and ``/v1/sessions``: logins of browsers, by a cookie instead of a token."""

from __future__ import annotations

from datetime import timedelta

from fastapi import APIRouter, Request, Response, status
from starlette.concurrency import run_in_threadpool

from epochal.errors import Conflict, NotFound
from epochal.service.api.access import audited, for_members, login
from epochal.service.api.context import Control, ControlPlane
from epochal.service.api.gate import Caller
from epochal.service.api.openapi import answers
from epochal.service.api.parameters import Paging
from epochal.service.api.session_cookies import cookie_in, delete_cookie, session_of, set_cookie
from epochal.service.catalog.types import now
from epochal.service.domain.logins import VerifiedLogin
from epochal.service.domain.permissions import Principal
from epochal.service.runtime.browser_sessions import KnownSession
from epochal.wire.bodies import Page
from epochal.wire.sessions import CreateSessionLink, ListedSession, SessionAnswer, SessionLinkAnswer

router = APIRouter(prefix="/v1/session", tags=["sessions"])
list_router = APIRouter(prefix="/v1/sessions", tags=["sessions"])

_NO_STORE = "no-store"


@router.post("", status_code=status.HTTP_201_CREATED)
@for_members
@login
@audited
@answers(Conflict)
async def create_session(request: Request, response: Response, control: Control) -> SessionAnswer:
    """Log in: create a session from the token in the header `Authorization` (a token of Epochal or of the identity
    provider, or the `code` of a link), and set its cookie. The cookie then replaces the token for every path, with the
    same rights. Requests that also have `Authorization` use that.

    The session ends with the token, after `sessions.hours`, and if it is not used for `sessions.idle_hours`. A previous
    session of the browser ends. POST, PUT, PATCH and DELETE with the cookie require the header `X-CSRF-Token`."""
    if not control.authenticator.enabled:
        raise Conflict("Authentication is off: requests need neither a token nor a session.")
    if session_of(request) is not None:
        raise Conflict("This browser has a session. To create another one, send a token in the header Authorization.")
    return await log_in(request, response, control, request.state.login)


@router.post("/links", status_code=status.HTTP_201_CREATED)
@for_members
@audited
@answers(Conflict)
async def create_session_link(
    body: CreateSessionLink, request: Request, response: Response, control: Control
) -> SessionLinkAnswer:
    """Create a link with which a browser signs in once, without a token. The session has the rights of the token, or of
    the session, of this request, and ends with it."""
    if not control.authenticator.enabled:
        raise Conflict(f"Authentication is off: open {_address(request, control)}/console/ without a link.")
    known, duration = session_of(request), timedelta(seconds=body.seconds)
    if known is None:
        verified = await control.authenticator.login(request.headers.get("authorization"))
        code, expires_at = await run_in_threadpool(control.sessions.create_link, verified, duration)
    else:
        code, expires_at = await run_in_threadpool(control.sessions.create_link_of_session, known, duration)
    response.headers["cache-control"] = _NO_STORE
    separator = "&" if "#" in body.path else "#"
    url = f"{_address(request, control)}{body.path}{separator}code={code.text}"
    return SessionLinkAnswer(code=code.text, expires_at=expires_at, url=url)


def _address(request: Request, control: ControlPlane) -> str:
    """URL of this control plane for the caller. With a forwarded port, it differs from the control plane's own one."""
    address = control.settings.advertised_url or str(request.base_url)
    return address.rstrip("/")


async def log_in(request: Request, response: Response, control: ControlPlane, verified: VerifiedLogin) -> SessionAnswer:
    """Create a session, and set its cookie. Raises ``Unauthenticated``."""
    address = None if request.client is None else request.client.host[:64]
    secret, known = await run_in_threadpool(control.sessions.create, verified, address, cookie_in(request))
    set_cookie(request, response, secret.text, (known.expires_at - now()).total_seconds())
    response.headers["cache-control"] = _NO_STORE
    return _answer(known.principal, known, control)


@router.get("")
@for_members
async def get_session(request: Request, response: Response, control: Control, caller: Caller) -> SessionAnswer:
    """The caller with its roles, and its session with the CSRF token. Also answers requests with a token, and without
    authentication, which have no session."""
    response.headers["cache-control"] = _NO_STORE
    return _answer(caller, session_of(request), control)


@router.delete("", status_code=status.HTTP_204_NO_CONTENT)
@for_members
@audited
@answers(NotFound)
async def delete_session(request: Request, response: Response, control: Control) -> None:
    """Log out: end the session of the request, and delete its cookie. Other control planes accept it for up to three
    more seconds. 404 for a request without a session."""
    known = session_of(request)
    if known is None:
        raise NotFound("This request has no session: it was authenticated in another way.")
    await run_in_threadpool(control.sessions.end_own, known)
    delete_cookie(request, response)


@list_router.get("")
@for_members
def list_sessions(request: Request, page: Paging, control: Control, caller: Caller) -> Page[ListedSession]:
    """List the sessions of the caller, newest first. Administrators of the installation see all sessions."""
    known = session_of(request)
    return control.listed_sessions.page(page, caller, None if known is None else known.id)


@list_router.delete("/{id}", status_code=status.HTTP_204_NO_CONTENT)
@for_members
@audited
def end_session(id: str, control: Control, caller: Caller) -> None:
    """End a session of the caller; administrators of the installation may end all sessions. 404 for those of
    others."""
    control.sessions.end(id, caller)


def _answer(caller: Principal, known: KnownSession | None, control: ControlPlane) -> SessionAnswer:
    answer = SessionAnswer(name=caller.name, person=caller.person, roles=dict(caller.roles))
    if known is None:
        return answer
    return answer.model_copy(
        update={
            "id": known.id,
            "csrf_token": known.csrf_token,
            "created_at": known.created_at,
            "expires_at": known.expires_at,
            "idle_seconds": control.settings.sessions.longest_pause.total_seconds(),
        }
    )
