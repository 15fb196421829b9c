"""Login at an identity provider from a terminal: device flow (RFC 8628), discovery, refresh and revocation."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from epochal.addresses import is_loopback
from epochal.errors import IssuerUnavailable, OptionError, Unauthenticated

_SECONDS = 10.0
_DEVICE = "urn:ietf:params:oauth:grant-type:device_code"
_SLOWER_SECONDS = 5.0
_USUAL_SECONDS = 5.0
_LONGEST_SECONDS = 1800.0


@dataclass(frozen=True)
class Grant:
    """Tokens issued by a provider. ``lifetime_seconds``: lifetime of ``token``, if known."""

    token: str
    refresh_token: str | None
    lifetime_seconds: float | None


@dataclass(frozen=True)
class Invitation:
    """Instructions for the user: open ``url`` and enter ``code``, unless the URL contains it."""

    url: str
    code: str
    device_code: str
    interval_seconds: float
    lifetime_seconds: float


class Provider:
    """An identity provider, found by its discovery document. ``id_token``: use the ID token for the control plane
    instead of the access token. Methods raise ``IssuerUnavailable`` if the provider does not answer."""

    def __init__(self, issuer: str, client: str, id_token: bool = False) -> None:
        self._issuer = _encrypted(issuer)
        self._client = client
        self._id_token = id_token
        # A proxy from the environment can never reach this machine's own loopback interface.
        local = is_loopback(httpx.URL(issuer).host)
        self._http = httpx.Client(timeout=_SECONDS, trust_env=not local)
        self._document: Mapping[str, Any] | None = None

    def close(self) -> None:
        self._http.close()

    def invite(self, scopes: str) -> Invitation:
        """Start the device flow. Raises ``OptionError`` if the provider does not support it or refuses the client."""
        status, said = self._post("device_authorization_endpoint", {"scope": scopes})
        url, code, device = said.get("verification_uri"), said.get("user_code"), said.get("device_code")
        if status != httpx.codes.OK:
            raise OptionError(f"{self._issuer} refuses logins of the client {self._client!r}: {_reason(said)}.")
        if not (isinstance(url, str) and isinstance(code, str) and isinstance(device, str)):
            raise IssuerUnavailable(f"{self._issuer} returned no code for the login.")
        whole = said.get("verification_uri_complete")
        return Invitation(
            url=whole if isinstance(whole, str) else url,
            code=code,
            device_code=device,
            interval_seconds=_number(said.get("interval"), _USUAL_SECONDS),
            lifetime_seconds=min(_number(said.get("expires_in"), _LONGEST_SECONDS), _LONGEST_SECONDS),
        )

    def wait(self, invitation: Invitation, pause: Callable[[float], None] = time.sleep) -> Grant:
        """Wait until the user has logged in. Raises ``Unauthenticated`` if the login is refused or times out."""
        interval, waited = invitation.interval_seconds, 0.0
        while waited < invitation.lifetime_seconds:
            pause(interval)
            waited += max(interval, 0.1)
            answer = {"grant_type": _DEVICE, "device_code": invitation.device_code}
            try:
                status, said = self._post("token_endpoint", answer)
            except IssuerUnavailable:
                interval += _SLOWER_SECONDS  # as RFC 8628 says of connections that fail
                continue
            if status == httpx.codes.OK:
                return self._grant(said, None)
            match said.get("error"):
                case "authorization_pending":
                    continue
                case "slow_down":
                    interval += _SLOWER_SECONDS
                case "access_denied":
                    raise Unauthenticated("The login was refused at the identity provider.")
                case "expired_token":
                    break
                case _:
                    raise Unauthenticated(f"The identity provider refused the login: {_reason(said)}.")
        raise Unauthenticated("The login has timed out; run `epochal login` again.")

    def refresh(self, refresh_token: str) -> Grant:
        """Renew the tokens. Raises ``Unauthenticated`` if the provider refuses the refresh token."""
        status, said = self._post("token_endpoint", {"grant_type": "refresh_token", "refresh_token": refresh_token})
        if status >= httpx.codes.INTERNAL_SERVER_ERROR:
            raise IssuerUnavailable(f"The identity provider {self._issuer} cannot renew the login: status {status}.")
        if status != httpx.codes.OK:
            raise Unauthenticated(f"The login has ended ({_reason(said)}); run `epochal login` again.")
        return self._grant(said, refresh_token)

    def revoke(self, refresh_token: str) -> bool:
        """Revoke the token. Return whether the provider has revoked it; not every provider supports revocation."""
        if not isinstance(self._discovery().get("revocation_endpoint"), str):
            return False
        return self._post("revocation_endpoint", {"token": refresh_token})[0] == httpx.codes.OK

    def _grant(self, said: Mapping[str, Any], refresh_token: str | None) -> Grant:
        token = said.get("id_token" if self._id_token else "access_token")
        if not isinstance(token, str) or not token:
            what = "ID token; request the scope openid" if self._id_token else "access token"
            raise Unauthenticated(f"The identity provider returned no {what}.")
        again = said.get("refresh_token")
        lifetime = _number(said.get("expires_in"), 0.0)
        return Grant(token, again if isinstance(again, str) else refresh_token, lifetime or None)

    def _post(self, endpoint: str, form: Mapping[str, str]) -> tuple[int, Mapping[str, Any]]:
        url = self._discovery().get(endpoint)
        if not isinstance(url, str):
            raise OptionError(f"{self._issuer} has no {endpoint}, which the login from a terminal requires.")
        return self._request("POST", _encrypted(url), {**form, "client_id": self._client})

    def _discovery(self) -> Mapping[str, Any]:
        if self._document is None:
            url = self._issuer.rstrip("/") + "/.well-known/openid-configuration"
            status, document = self._request("GET", url, None)
            if status != httpx.codes.OK:
                raise IssuerUnavailable(
                    f"{url} answered with status {status}. Check that {self._issuer} is the issuer."
                )
            if document.get("issuer") != self._issuer:
                raise OptionError(f"{url} belongs to another issuer, {document.get('issuer')!r}.")
            self._document = document
        return self._document

    def _request(self, method: str, url: str, form: Mapping[str, str] | None) -> tuple[int, Mapping[str, Any]]:
        try:
            answer = self._http.request(method, url, data=form, headers={"Accept": "application/json, */*;q=0.1"})
        except httpx.HTTPError as error:
            raise IssuerUnavailable(f"The identity provider does not answer at {url}: {error}.") from error
        try:
            document = answer.json()
        except (ValueError, RecursionError):
            document = None
        return answer.status_code, document if isinstance(document, dict) else {}


def _encrypted(url: str) -> str:
    """Raises ``OptionError`` for a URL without encryption, except of the loopback interface."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        raise OptionError(f"{url!r} is not a URL.") from None
    if not parsed.host or not (parsed.scheme == "https" or (parsed.scheme == "http" and is_loopback(parsed.host))):
        raise OptionError(f"{url!r} is not an https URL; logins require encryption.")
    return url


def _number(value: object, otherwise: float) -> float:
    return float(value) if isinstance(value, (int, float)) and 0 <= value < float("inf") else otherwise


def _reason(said: Mapping[str, Any]) -> str:
    return str(said.get("error_description") or said.get("error") or "it gave no reason").rstrip(".")
