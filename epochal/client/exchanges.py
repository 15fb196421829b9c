"""What a call sends, and what is made of the answers: the same for both flavours of the client, which only send.

An exchange is a generator: it yields requests, is sent their answers, and its result is the call's.
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
"""So long a call is repeated that the control plane has no place for, or that somebody works on already."""


PAGE = 500
"""Rows of a page of a list, at most."""


BUILD_SECONDS = 180.0
"""Building and analysing a pipeline starts a Spark session in a process of its own."""


REQUEST_ID = "X-Request-Id"


ACCEPTED = "application/json, application/problem+json"


_JSON = "application/json"


_TOO_MANY_REQUESTS = 429


_CONFLICT = 409


_TRANSIENT = frozenset({502, 503, 504})


@dataclass(frozen=True)
class Request:
    """``changes``: whether it has an effect, and so an ``Idempotency-Key``. ``accept``: the form of the answer, where
    that is not JSON (errors are what they always are). What is ``None`` in ``query`` is left out."""

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
        """Those of this request, new each time: what repeats it sends the same again, so that the control plane's log
        and audit name all of them alike."""
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
    """A GET."""
    return Request("GET", path, query, timeout_seconds=timeout_seconds, accept=accept)


def posted(path: str, body: Mapping[str, Any], **options: Any) -> Request:
    """A POST of a JSON object; members that are ``None`` are left out. ``options``: of :class:`Request`."""
    return Request("POST", path, content=json.dumps(present(body)).encode(), content_type=_JSON, **options)


def path(*segments: str | int) -> str:
    """``/v1`` and the segments, each percent-encoded."""
    return "/v1/" + "/".join(_segment(str(segment)) for segment in segments)


def _segment(text: str) -> str:
    """``.`` and ``..`` would lead elsewhere: clients and proxies resolve them."""
    return text.replace(".", "%2E") if text in (".", "..") else quote(text, safe="")


def key_segment(columns: tuple[Any, ...]) -> str:
    """The key columns' values in order, comma-separated, each percent-encoded; ``None`` is ``%00``.

    Raises ``InvalidKey`` for the text of one zero character, which cannot be told from that.
    """
    return ",".join(quote(_text(value), safe="") for value in columns)


def survives_in_path(key: str) -> bool:
    """Whether a key, as :func:`key_segment` gives it, reaches the control plane unchanged as a segment of a path.

    Clients and proxies resolve ``.`` and ``..`` (many also as ``%2E``), and may merge or refuse ``/``, ``\\`` and zero.
    """
    return key not in ("", ".", "..") and not any(text in key for text in ("%2F", "%5C", "%00"))


def _text(value: Any) -> str:
    if value is None:
        return "\0"
    if value == "\0":
        raise InvalidKey(
            "The text of one zero character stands for null in a path and in a query. Look such a key up with "
            "lookup([..]), whose keys are objects."
        )
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def present(members: Mapping[str, Any] | None) -> dict[str, Any]:
    """Those that are not ``None``."""
    return {name: value for name, value in (members or {}).items() if value is not None}


def document(response: httpx.Response) -> Any:
    """The JSON of an answer. Raises ``EpochalError`` where it is none."""
    try:
        return response.json()
    except ValueError as error:
        raise EpochalError(
            f"{response.request.url} did not answer with JSON; is it an Epochal control plane? Check EPOCHAL_URL."
        ) from error


def succeeded(response: httpx.Response) -> httpx.Response:
    """The answer, or the exception that it stands for."""
    if response.is_success:
        return response
    raise error_of_response(response)


def unavailable(url: str, error: httpx.TransportError) -> CatalogUnavailable:
    """What is said of a control plane that has not answered."""
    match error:
        case httpx.ConnectError() if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return CatalogUnavailable(
                f"The certificate of the control plane at {url} is not trusted ({error}). Name the authority that has "
                f"signed it: {CA_VARIABLE}=FILE."
            )
        case httpx.ConnectError() if "[SSL" in str(error):
            return CatalogUnavailable(f"{url} does not speak TLS as this client does ({error}); is it http, not https?")
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
            tls = " Where it speaks TLS, its URL begins with https." if url.startswith("http:") else ""
            return CatalogUnavailable(f"The connection to {url} was lost ({error}); call again.{tls}")


class Patience:
    """How often one call is repeated. After a lost connection or a transient status a few times: reading has no effect,
    and what changes something carries an ``Idempotency-Key``, the same for each repetition, so that it takes effect
    once. An answer's ``Retry-After`` is waited for; a call that is refused because there are too many, or because its
    first try is still being worked on, is repeated for two minutes.
    """

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
