"""Calls of people's programs: tokens, idempotency keys, how often a call is repeated, problems as exceptions, pages."""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from epochal.client.location import Location
from epochal.errors import CatalogUnavailable, EpochalError
from epochal.wire.bodies import Model, read
from epochal.wire.http import ControlPlanes, HttpCalls, Outcome
from epochal.wire.problems import error_of_response

Query = Mapping[str, Any]

ATTEMPTS = 4
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 30.0
CROWDED_SECONDS = 120.0
"""So long a call is repeated that the control plane has no place for, or that somebody works on already."""
PAGE = 500
REQUEST_ID = "X-Request-Id"
_TOO_MANY_REQUESTS = 429
_CONFLICT = 409
_TRANSIENT = frozenset({502, 503, 504})


class Transport:
    """Requests to one control plane. Thread-safe, as the pool below it is.

    A call is repeated after a lost connection or a transient status: reading has no effect, and what changes something
    carries an ``Idempotency-Key``, the same for each repetition, so that it takes effect once. An answer's
    ``Retry-After`` is waited for; a call that is refused because there are too many, or because its first try is still
    being worked on, is repeated for two minutes.
    """

    def __init__(self, location: Location, timeout_seconds: float) -> None:
        self.location = location
        headers = {"Accept": "application/json, application/problem+json"}
        if location.token is not None:
            headers["Authorization"] = f"Bearer {location.token}"
        # A proxy from the environment can never reach this machine's own loopback interface.
        self._calls = HttpCalls(
            ControlPlanes([location.url]), headers, timeout_seconds, trust_environment=not location.loopback
        )

    def close(self) -> None:
        self._calls.close()

    def get(self, path: str, query: Query | None = None, timeout_seconds: float | None = None) -> Any:
        """The JSON answer to a GET."""
        return self._document(self._send("GET", path, query, timeout_seconds=timeout_seconds))

    def post(
        self, path: str, body: Mapping[str, Any], timeout_seconds: float | None = None, if_match: str | None = None
    ) -> Any:
        """The JSON answer to a POST of a JSON object; members that are ``None`` are left out."""
        return self._document(
            self._send("POST", path, None, _json(body), "application/json", timeout_seconds, if_match=if_match)
        )

    def query(
        self,
        path: str,
        body: Mapping[str, Any],
        timeout_seconds: float | None = None,
        parameters: Query | None = None,
    ) -> Any:
        """As :meth:`post`, where the call changes nothing, or is repeated by what is in it: without an
        ``Idempotency-Key``."""
        content = _json(body)
        return self._document(
            self._send("POST", path, parameters, content, "application/json", timeout_seconds, changes=False)
        )

    def query_bytes(self, path: str, body: Mapping[str, Any], accept: str) -> bytes:
        """As :meth:`query`; the answer as it comes, in the form ``accept`` (errors are what they always are)."""
        content = _json(body)
        return self._send("POST", path, None, content, "application/json", changes=False, accept=accept).content

    def upload(self, path: str, query: Query, content: bytes) -> Any:
        """The JSON answer to a POST of raw bytes."""
        return self._document(self._send("POST", path, query, content, "application/octet-stream"))

    def put(self, path: str, query: Query, content: bytes) -> Any:
        """The JSON answer to a PUT of raw bytes."""
        return self._document(self._send("PUT", path, query, content, "application/octet-stream"))

    def delete(self, path: str, if_match: str | None = None) -> None:
        self._send("DELETE", path, None, if_match=if_match)

    def text(self, path: str, query: Query | None = None) -> str:
        """The answer to a GET as text, where it is not JSON."""
        return self._send("GET", path, query).text

    def pages(
        self,
        path: str,
        model: type[Model],
        limit: int | None,
        query: Query | None = None,
        timeout_seconds: float | None = None,
        member: str = "items",
    ) -> list[Model]:
        """The items of a paged list, at most ``limit`` of them, or all; ``member``: what the pages have beside them."""
        items: list[Model] = []
        cursor: str | None = None
        while limit is None or len(items) < limit:
            size = PAGE if limit is None else min(PAGE, limit - len(items))
            answer = self.get(path, {**(query or {}), "limit": size, "cursor": cursor}, timeout_seconds)
            items.extend(read(model, item) for item in answer.get(member, ()))
            cursor = answer.get("next_cursor")
            if cursor is None:
                break
        return items

    @contextmanager
    def stream(
        self, path: str, query: Query | None = None, headers: Mapping[str, str] | None = None
    ) -> Iterator[httpx.Response]:
        """An answer that is read while it comes, without a time limit between its parts."""
        timeout = httpx.Timeout(self._calls.timeout.connect, read=None)
        try:
            response = self._calls.once(
                "GET", path, query=_present(query), headers=headers, timeout=timeout, stream=True
            )
        except httpx.TransportError as error:
            raise self._unavailable(error) from error
        try:
            if response.is_error:
                response.read()
                raise error_of_response(response)
            yield response
        except httpx.TransportError as error:
            raise self._unavailable(error) from error
        finally:
            response.close()

    def _send(
        self,
        method: str,
        path: str,
        query: Query | None,
        content: bytes | None = None,
        content_type: str | None = None,
        timeout_seconds: float | None = None,
        changes: bool = True,
        if_match: str | None = None,
        accept: str | None = None,
    ) -> httpx.Response:
        # The same for each repetition: the control plane's log and audit name all of them alike.
        headers = {REQUEST_ID: secrets.token_hex(8)}
        if content_type is not None:
            headers["Content-Type"] = content_type
        if accept is not None:
            headers["Accept"] = f"{accept}, application/problem+json"
        if if_match is not None:
            headers["If-Match"] = f'"{if_match}"'
        if changes and method != "GET":
            headers["Idempotency-Key"] = str(uuid.uuid4())
        try:
            response = self._calls.call(
                method,
                path,
                _Patience(),
                query=_present(query),
                content=content,
                headers=headers,
                timeout=timeout_seconds,
            )
        except httpx.TransportError as error:
            raise self._unavailable(error) from error
        if response.is_success:
            return response
        raise error_of_response(response)

    def _unavailable(self, error: httpx.TransportError) -> CatalogUnavailable:
        url = self.location.url
        match error:
            case httpx.ConnectError():
                return CatalogUnavailable(
                    f"No control plane answers at {url}; start one with `epochal up`, or name another with --url or "
                    "EPOCHAL_URL."
                )
            case httpx.TimeoutException():
                return CatalogUnavailable(
                    f"The control plane at {url} did not answer in time; look at its log, or call again."
                )
            case _:
                return CatalogUnavailable(f"The connection to {url} was lost ({error}); call again.")

    @staticmethod
    def _document(response: httpx.Response) -> Any:
        try:
            return response.json()
        except ValueError as error:
            raise EpochalError(
                f"{response.request.url} did not answer with JSON; is it an Epochal control plane? Check EPOCHAL_URL."
            ) from error


class _Patience:
    """How often one call is repeated: see :class:`Transport`."""

    def __init__(self) -> None:
        self._failed = 0
        self._waited = 0.0

    def pause(self, outcome: Outcome) -> float | None:
        pause: float = FIRST_PAUSE_SECONDS * 2**self._failed
        if isinstance(outcome, httpx.Response):
            pause = max(pause, _retry_after_seconds(outcome))
            if _is_to_be_awaited(outcome) and self._waited + pause <= CROWDED_SECONDS:
                self._waited += pause
                return pause
            if outcome.status_code not in _TRANSIENT:
                return None
        self._failed += 1
        return pause if self._failed < ATTEMPTS else None


def _is_to_be_awaited(response: httpx.Response) -> bool:
    """A conflict that passes says so: the first try of this call, whose answer was lost, is still being worked on."""
    in_progress = response.status_code == _CONFLICT and "retry-after" in response.headers
    return in_progress or response.status_code == _TOO_MANY_REQUESTS


def _retry_after_seconds(response: httpx.Response) -> float:
    """At most ``LONGEST_PAUSE_SECONDS``; 0 where the answer does not say. Dates are not taken: clocks differ."""
    text = response.headers.get("retry-after", "")
    return min(float(text), LONGEST_PAUSE_SECONDS) if text.isascii() and text.isdigit() else 0.0


def _json(body: Mapping[str, Any]) -> bytes:
    return json.dumps(_present(body)).encode()


def _present(query: Query | None) -> dict[str, Any]:
    return {name: value for name, value in (query or {}).items() if value is not None}
