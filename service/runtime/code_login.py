"""Logins of people in a browser: the authorisation code flow of OpenID Connect, with PKCE (RFC 7636)."""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from epochal.errors import InvalidInput, IssuerUnavailable, OptionError, Unauthenticated
from epochal.service.domain.addresses import check_encrypted
from epochal.service.domain.identity import OidcSettings
from epochal.service.domain.login_attempts import LoginAttempt, is_console_path
from epochal.service.domain.logins import VerifiedLogin
from epochal.service.domain.secrets import same
from epochal.service.runtime.issuer_documents import IssuerDocuments
from epochal.service.runtime.person_tokens import PersonTokens, discovery_of

_LONGEST_CODE = 4096


class CodeLogin:
    """Thread-safe. ``redirect_uri``: the URL of this control plane to which the provider sends the browser back."""

    def __init__(self, settings: OidcSettings, client: str, redirect_uri: str) -> None:
        self._settings = settings
        self._client = client
        self._redirect_uri = redirect_uri
        self._documents = IssuerDocuments(settings.authority)
        self._people = PersonTokens(settings)

    def begin(self, return_to: str) -> tuple[str, LoginAttempt]:
        """The provider's URL for the browser, and the state that the browser keeps. Raises ``InvalidInput`` for a path
        outside the console, ``IssuerUnavailable``."""
        if not is_console_path(return_to):
            raise InvalidInput("return_to must be a path that begins with /console/.")
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        attempt = LoginAttempt(state, nonce, verifier, return_to)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(attempt.verifier.encode()).digest()).rstrip(b"=").decode()
        query = {
            "response_type": "code",
            "client_id": self._client,
            "redirect_uri": self._redirect_uri,
            "scope": self._settings.scopes,
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        url = self._endpoint("authorization_endpoint")
        return f"{url}{'&' if '?' in url else '?'}{urlencode(query)}", attempt

    def finish(self, attempt: LoginAttempt | None, answer: Mapping[str, str]) -> VerifiedLogin:
        """The person, from the parameters with which the provider has sent the browser back.

        Raises ``Unauthenticated`` if this browser has not begun the login, or the provider refuses it;
        ``IssuerUnavailable``.
        """
        if attempt is None or not same(answer.get("state", ""), attempt.state):
            raise Unauthenticated("This browser has not begun this login, or too long ago. Log in again.")
        if answer.get("iss", self._settings.issuer) != self._settings.issuer:
            raise Unauthenticated("The answer is of another identity provider. Log in again.")
        code = answer.get("code", "")
        if not code or len(code) > _LONGEST_CODE:
            raise Unauthenticated(f"The identity provider refused the login: {answer.get('error', 'no code')[:100]}.")
        token = self._exchange(code, attempt.verifier)
        return self._people.code_login(token, attempt.nonce)

    def _exchange(self, code: str, verifier: str) -> str:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._redirect_uri,
            "client_id": self._client,
            "code_verifier": verifier,
        }
        try:
            status, answer = self._documents.submit(self._endpoint("token_endpoint"), form, self._authorization())
        except (OSError, ValueError) as error:
            raise self._unavailable(error) from error
        if status >= 500:
            raise self._unavailable(f"its token endpoint has answered {status}")
        token = answer.get("id_token")
        if status != 200 or not isinstance(token, str):
            reason = answer.get("error", f"it answered {status} without an ID token")
            raise Unauthenticated(f"The identity provider refused the login: {str(reason)[:100]}. Log in again.")
        return token

    def _authorization(self) -> dict[str, str]:
        file = self._settings.client_secret_file
        if file is None:
            return {}
        try:
            secret = file.read_text().strip()
        except OSError as error:
            raise OptionError(f"--oidc: client_secret_file {file} cannot be read: {error.strerror}.") from error
        credentials = f"{quote(self._client, safe='')}:{quote(secret, safe='')}"
        return {"Authorization": f"Basic {base64.b64encode(credentials.encode()).decode()}"}

    def _endpoint(self, name: str) -> str:
        """Raises ``IssuerUnavailable``."""
        issuer = self._settings.issuer
        try:
            url: Any = discovery_of(issuer, self._documents.document).get(name)
            if not isinstance(url, str):
                raise ValueError(f"its discovery document has no `{name}`")
            check_encrypted(url)
        except (OSError, ValueError) as error:
            raise self._unavailable(error) from error
        return url

    def _unavailable(self, reason: object) -> IssuerUnavailable:
        return IssuerUnavailable(f"Logins by the identity provider {self._settings.issuer} fail now: {reason}.")
