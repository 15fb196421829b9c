"""Logging in at an identity provider from a terminal: the device flow (RFC 8628), discovery, refresh and revocation."""

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
    """Tokens that a provider has given. ``lifetime_seconds``: of the first, where the provider says it."""

    token: str
    refresh_token: str | None
    lifetime_seconds: float | None


@dataclass(frozen=True)
class Invitation:
    """What a person has to do: open ``url``, and enter ``code`` where it is not in the URL already."""

    url: str
    code: str
    device_code: str
    interval_seconds: float
    lifetime_seconds: float


class Provider:
    """An identity provider, by its discovery document. ``id_token``: whether the ID token is what is shown to the
    control plane, instead of the access token. Raises ``IssuerUnavailable`` when it does not answer."""

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
        """Raises ``OptionError`` for a provider without the device flow, or one that does not know the client."""
        status, said = self._post("device_authorization_endpoint", {"scope": scopes})
        url, code, device = said.get("verification_uri"), said.get("user_code"), said.get("device_code")
        if status != httpx.codes.OK:
            raise OptionError(f"{self._issuer} does not let {self._client!r} log in: {_reason(said)}.")
        if not (isinstance(url, str) and isinstance(code, str) and isinstance(device, str)):
            raise IssuerUnavailable(f"{self._issuer} has answered the login with something else than a code to enter.")
        whole = said.get("verification_uri_complete")
        return Invitation(
            url=whole if isinstance(whole, str) else url,
            code=code,
            device_code=device,
            interval_seconds=_number(said.get("interval"), _USUAL_SECONDS),
            lifetime_seconds=min(_number(said.get("expires_in"), _LONGEST_SECONDS), _LONGEST_SECONDS),
        )

    def wait(self, invitation: Invitation, pause: Callable[[float], None] = time.sleep) -> Grant:
        """Until the person has logged in. Raises ``Unauthenticated`` when they do not, or not in time."""
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
                    raise Unauthenticated(f"The identity provider has ended the login: {_reason(said)}.")
        raise Unauthenticated("Nobody has logged in in time; run `epochal login` again.")

    def refresh(self, refresh_token: str) -> Grant:
        """Raises ``Unauthenticated`` when the provider takes the token no more."""
        status, said = self._post("token_endpoint", {"grant_type": "refresh_token", "refresh_token": refresh_token})
        if status >= httpx.codes.INTERNAL_SERVER_ERROR:
            raise IssuerUnavailable(f"The identity provider {self._issuer} does not renew the login now: {status}.")
        if status != httpx.codes.OK:
            raise Unauthenticated(f"The login has ended ({_reason(said)}); run `epochal login` again.")
        return self._grant(said, refresh_token)

    def revoke(self, refresh_token: str) -> bool:
        """Whether the provider has taken the token back; some have no way to."""
        if not isinstance(self._discovered().get("revocation_endpoint"), str):
            return False
        return self._post("revocation_endpoint", {"token": refresh_token})[0] == httpx.codes.OK

    def _grant(self, said: Mapping[str, Any], refresh_token: str | None) -> Grant:
        token = said.get("id_token" if self._id_token else "access_token")
        if not isinstance(token, str) or not token:
            what = "ID token: ask for the scope openid" if self._id_token else "access token"
            raise Unauthenticated(f"The identity provider has given no {what}.")
        again = said.get("refresh_token")
        lifetime = _number(said.get("expires_in"), 0.0)
        return Grant(token, again if isinstance(again, str) else refresh_token, lifetime or None)

    def _post(self, endpoint: str, form: Mapping[str, str]) -> tuple[int, Mapping[str, Any]]:
        url = self._discovered().get(endpoint)
        if not isinstance(url, str):
            raise OptionError(f"{self._issuer} has no {endpoint}, which logging in from a terminal needs.")
        return self._asked("POST", _encrypted(url), {**form, "client_id": self._client})

    def _discovered(self) -> Mapping[str, Any]:
        if self._document is None:
            url = self._issuer.rstrip("/") + "/.well-known/openid-configuration"
            status, document = self._asked("GET", url, None)
            if status != httpx.codes.OK:
                raise IssuerUnavailable(f"{url} has answered {status}: is {self._issuer} the issuer?")
            if document.get("issuer") != self._issuer:
                raise OptionError(f"{url} is of another issuer, {document.get('issuer')!r}.")
            self._document = document
        return self._document

    def _asked(self, method: str, url: str, form: Mapping[str, str] | None) -> tuple[int, Mapping[str, Any]]:
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
    """Raises ``OptionError`` for a URL on whose way somebody could read what is sent."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        raise OptionError(f"{url!r} is not a URL.") from None
    if not parsed.host or not (parsed.scheme == "https" or (parsed.scheme == "http" and is_loopback(parsed.host))):
        raise OptionError(f"{url!r} is not an https URL, so that a login could be read on the way.")
    return url


def _number(value: object, otherwise: float) -> float:
    return float(value) if isinstance(value, (int, float)) and 0 <= value < float("inf") else otherwise


def _reason(said: Mapping[str, Any]) -> str:
    return str(said.get("error_description") or said.get("error") or "it gave no reason").rstrip(".")
