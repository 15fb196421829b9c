"""``/v1/session/login`` and ``/v1/session/callback``: login in a browser by an identity provider."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, status
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse

from epochal.errors import (
    CatalogUnavailable,
    EpochalError,
    InvalidInput,
    IssuerUnavailable,
    NotFound,
    OptionError,
    TooManyRequests,
    Unauthenticated,
)
from epochal.service.api.access import audited, public
from epochal.service.api.auditing import RefusedCalls, details_of
from epochal.service.api.context import Control, ControlPlane
from epochal.service.api.gate import rates_of
from epochal.service.api.openapi import answers
from epochal.service.api.problems import epochal_problem
from epochal.service.api.session_cookies import cookie_of, delete_cookie, set_cookie
from epochal.service.api.sessions import log_in
from epochal.service.catalog.audit import AuditedCall, auditing
from epochal.service.domain.login_attempts import LoginAttempt, is_console_path
from epochal.wire.problems import status_of
from epochal.wire.sessions import LoginMethods

if TYPE_CHECKING:
    from epochal.service.runtime.code_login import CodeLogin

router = APIRouter(prefix="/v1/session", tags=["sessions"])

START = "/console/"
REFUSAL = "epochal-login-refused"
"""Cookie with the reason why a login has failed, which scripts of the console read and delete."""
_REFUSAL_SECONDS = 60
_LONGEST_REASON = 500
_ATTEMPT = "epochal-login"
_ATTEMPT_SECONDS = 600
_Parameter = Annotated[str | None, Query(max_length=4096)]


@router.get("/methods")
@public
async def get_login_methods(control: Control) -> LoginMethods:
    """How a browser can log in."""
    oidc = control.settings.oidc
    provider = None if control.code_login is None or oidc is None else oidc.provider
    return LoginMethods(authentication=control.authenticator.enabled, provider=provider)


@router.get("/login", status_code=status.HTTP_303_SEE_OTHER, response_class=RedirectResponse)
@public
@answers(NotFound, InvalidInput, IssuerUnavailable, TooManyRequests)
async def begin_login(
    request: Request,
    control: Control,
    return_to: Annotated[str, Query(description="Path of the console to open afterwards.")] = START,
) -> RedirectResponse:
    """Send the browser to the identity provider (authorisation code flow with PKCE). 404 if none with a client for
    browsers is configured. A request that accepts `text/html` is redirected to the console instead of an error, which
    shows the reason."""
    try:
        code_login = _configured(control)
        rates_of(request).count_login(request.scope)
        url, attempt = await run_in_threadpool(code_login.begin, return_to)
    except EpochalError as refused:
        if not _is_navigation(request):
            raise
        return await _refused(request, refused, return_to)
    response = RedirectResponse(url, status.HTTP_303_SEE_OTHER, headers={"cache-control": "no-store"})
    set_cookie(request, response, attempt.text, _ATTEMPT_SECONDS, _ATTEMPT)
    return response


@router.get("/callback", status_code=status.HTTP_303_SEE_OTHER, response_class=RedirectResponse)
@public
@audited
@answers(NotFound, Unauthenticated, IssuerUnavailable, OptionError, TooManyRequests, CatalogUnavailable)
async def finish_login(
    request: Request,
    control: Control,
    state: _Parameter = None,
    code: _Parameter = None,
    iss: _Parameter = None,
    error: _Parameter = None,
) -> RedirectResponse:
    """The identity provider sends the browser here. Creates a session like POST /v1/session, and opens the console.
    After an error, a request that accepts `text/html` is redirected there too; the page for signing in shows the
    reason."""
    attempt = LoginAttempt.parse(cookie_of(request, _ATTEMPT))
    parameters = {"state": state, "code": code, "iss": iss, "error": error}
    sent = {name: value for name, value in parameters.items() if value is not None}
    try:
        return await _finished(request, control, attempt, sent)
    except EpochalError as refused:
        if not _is_navigation(request):
            raise
        return await _refused(request, refused, START if attempt is None else attempt.return_to)


async def _finished(
    request: Request, control: ControlPlane, attempt: LoginAttempt | None, sent: Mapping[str, str]
) -> RedirectResponse:
    code_login = _configured(control)
    rates_of(request).count_login(request.scope)
    try:
        verified = await run_in_threadpool(code_login.finish, attempt, sent)
        request.state.principal = verified.principal
        response = RedirectResponse(START if attempt is None else attempt.return_to, status.HTTP_303_SEE_OTHER)
        with auditing(AuditedCall(details_of(request.scope))):
            await log_in(request, response, control, verified)
    except EpochalError as refused:
        await RefusedCalls(control.database)(request.scope, status_of(refused))
        raise
    delete_cookie(request, response, _ATTEMPT)
    return response


def _is_navigation(request: Request) -> bool:
    """Distinguish a browser that opens the path as a page from scripts and programs."""
    return "text/html" in request.headers.get("accept", "")


async def _refused(request: Request, refused: EpochalError, return_to: str) -> RedirectResponse:
    """Open the console, where the person can sign in again. The reason is in a cookie and not in the address: a link
    cannot make the console show a text."""
    problem = await epochal_problem(request, refused)
    page = return_to if is_console_path(return_to) else START
    response = RedirectResponse(page, status.HTTP_303_SEE_OTHER, headers={"cache-control": "no-store"})
    reason = f"The login has failed. {json.loads(bytes(problem.body))['detail']}"
    response.set_cookie(
        REFUSAL, quote(reason[:_LONGEST_REASON], safe=""), max_age=_REFUSAL_SECONDS, path=START, samesite="lax"
    )
    return response


def _configured(control: ControlPlane) -> CodeLogin:
    if control.code_login is None:
        raise NotFound("No identity provider with a client for browsers is configured.")
    return control.code_login
