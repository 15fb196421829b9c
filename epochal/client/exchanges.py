"""Requests and their evaluation, independent of how they are sent.

An exchange is a generator that yields requests, receives their answers, and returns the result of the call. Both
clients run the same exchanges.
"""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote

import httpx

from epochal.errors import CatalogUnavailable, EpochalError, InvalidKey
from epochal.wire.http import Outcome
from epochal.wire.problems import error_of_response
from epochal.wire.trust import CA_VARIABLE

Query = Mapping[str, Any]


Result = TypeVar("Result")


ATTEMPTS = 4


FIRST_PAUSE_SECONDS = 0.1


LONGEST_PAUSE_SECONDS = 30.0


CROWDED_SECONDS = 120.0
"""Maximum time for retries of a call that exceeds a rate limit or is already being processed."""


PAGE = 500
"""Maximum number of items in a page."""


BUILD_SECONDS = 180.0
"""Timeout for building and analysing a pipeline, which starts a Spark session."""


REQUEST_ID = "X-Request-Id"


ACCEPTED = "application/json, application/problem+json"


_JSON = "application/json"


_TOO_MANY_REQUESTS = 429


_CONFLICT = 409


_TRANSIENT = frozenset({502, 503, 504})


@dataclass(frozen=True)
class Request:
    """A request. ``changes``: the request has an effect and gets an ``Idempotency-Key``. ``accept``: media type of the
    answer if it is not JSON. Members of ``query`` that are ``None`` are omitted."""

    method: str
    path: str
    query: Query | None = None
    content: bytes | None = None
    content_type: str | None = None
    timeout_seconds: float | None = None
    changes: bool = True
    if_match: str | None = None
    accept: str | None = None

    @property
    def parameters(self) -> dict[str, Any]:
        return present(self.query)

    def headers(self) -> dict[str, str]:
        """Create headers. Retries send the same headers, so that the log and the audit show the same request id."""
        headers = {REQUEST_ID: secrets.token_hex(8)}
        if self.content_type is not None:
            headers["Content-Type"] = self.content_type
        if self.accept is not None:
            headers["Accept"] = f"{self.accept}, application/problem+json"
        if self.if_match is not None:
            headers["If-Match"] = f'"{self.if_match}"'
        if self.changes and self.method != "GET":
            headers["Idempotency-Key"] = str(uuid.uuid4())
        return headers


Exchange: TypeAlias = Generator[Request, httpx.Response, Result]


def asked(
    path: str, query: Query | None = None, timeout_seconds: float | None = None, accept: str | None = None
) -> Request:
    """A GET request."""
    return Request("GET", path, query, timeout_seconds=timeout_seconds, accept=accept)


def posted(path: str, body: Mapping[str, Any], **options: Any) -> Request:
    """A POST request with a JSON object without members that are ``None``. ``options``: arguments of
    :class:`Request`."""
    return Request("POST", path, content=json.dumps(present(body)).encode(), content_type=_JSON, **options)


def path(*segments: str | int) -> str:
    """``/v1`` and the segments, each percent-encoded."""
    return "/v1/" + "/".join(_segment(str(segment)) for segment in segments)


def _segment(text: str) -> str:
    """Percent-encode a segment, including ``.`` and ``..``, which clients and proxies would resolve."""
    return text.replace(".", "%2E") if text in (".", "..") else quote(text, safe="")


def key_segment(columns: tuple[Any, ...]) -> str:
    """The key columns' values in order, comma-separated, each percent-encoded; ``None`` is ``%00``.

    Raises ``InvalidKey`` for a text of one NUL character, which represents null.
    """
    return ",".join(quote(_text(value), safe="") for value in columns)


def survives_in_path(key: str) -> bool:
    """Return whether a key from :func:`key_segment` reaches the control plane unchanged as a path segment.

    Clients and proxies resolve ``.`` and ``..`` (many also as ``%2E``), and may merge or refuse ``/``, ``\\`` and zero.
    Routes do not match line breaks.
    """
    return key not in ("", ".", "..") and not any(text in key for text in ("%2F", "%5C", "%00", "%0A", "%0D"))


def _text(value: Any) -> str:
    if value is None:
        return "\0"
    if value == "\0":
        raise InvalidKey(
            "A text of one NUL character represents null in paths and queries. Look up such a key with lookup([..]), "
            "whose keys are objects."
        )
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def present(members: Mapping[str, Any] | None) -> dict[str, Any]:
    """Members that are not ``None``."""
    return {name: value for name, value in (members or {}).items() if value is not None}


def document(response: httpx.Response) -> Any:
    """Parse the JSON of an answer. Raises ``EpochalError`` for other content."""
    try:
        return response.json()
    except ValueError as error:
        raise EpochalError(
            f"{response.request.url} did not return JSON. Check that EPOCHAL_URL is the URL of a control plane."
        ) from error


def succeeded(response: httpx.Response) -> httpx.Response:
    """Return a successful answer. Raises the error of any other one."""
    if response.is_success:
        return response
    raise error_of_response(response)


def unavailable(url: str, error: httpx.TransportError) -> CatalogUnavailable:
    """The error for a control plane that did not answer."""
    match error:
        case httpx.ConnectError() if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return CatalogUnavailable(
                f"The certificate of the control plane at {url} is not trusted ({error}). Set the certificate "
                f"authority: {CA_VARIABLE}=FILE."
            )
        case httpx.ConnectError() if "[SSL" in str(error):
            return CatalogUnavailable(
                f"The TLS handshake with {url} failed ({error}). Check whether the URL must begin with http."
            )
        case httpx.ConnectError():
            return CatalogUnavailable(
                f"No control plane answers at {url}; start one with `epochal up`, or set another URL with --url or "
                "EPOCHAL_URL."
            )
        case httpx.TimeoutException():
            return CatalogUnavailable(f"The control plane at {url} did not answer in time. See its log, or try again.")
        case _:
            tls = " With TLS, the URL begins with https." if url.startswith("http:") else ""
            return CatalogUnavailable(f"The connection to {url} was lost ({error}). Try again.{tls}")


class Patience:
    """Retry policy of a call. After a lost connection or a transient status a call is retried a few times: reads have
    no effect, and mutating calls have an ``Idempotency-Key``, which is the same for all retries. ``Retry-After`` is
    observed. Calls that exceed a rate limit, or whose first request is still being processed, are retried for two
    minutes.
    """

    def __init__(self) -> None:
        self._failed = 0
        self._waited = 0.0

    def pause(self, outcome: Outcome) -> float | None:
        pause: float = FIRST_PAUSE_SECONDS * 2**self._failed
        if isinstance(outcome, httpx.Response):
            pause = max(pause, _retry_after_seconds(outcome))
            if _is_temporary(outcome) and self._waited + pause <= CROWDED_SECONDS:
                self._waited += pause
                return pause
            if outcome.status_code not in _TRANSIENT:
                return None
        self._failed += 1
        return pause if self._failed < ATTEMPTS else None


def _is_temporary(response: httpx.Response) -> bool:
    """Check for a rate limit, or a conflict with the first request of the call, which is still being processed."""
    in_progress = response.status_code == _CONFLICT and "retry-after" in response.headers
    return in_progress or response.status_code == _TOO_MANY_REQUESTS


def _retry_after_seconds(response: httpx.Response) -> float:
    """``Retry-After`` in seconds, at most ``LONGEST_PAUSE_SECONDS``; 0 if missing or a date, since clocks differ."""
    text = response.headers.get("retry-after", "")
    return min(float(text), LONGEST_PAUSE_SECONDS) if text.isascii() and text.isdigit() else 0.0
