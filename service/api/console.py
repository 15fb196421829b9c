"""``/console/``: the files of the console, a single page application.

The files contain no data of an installation and need no token; the page reads everything from the public API. Files
below ``assets`` whose names contain a hash of their content never change. All other paths below ``/console/`` are views
of the application, and are answered with its page.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse

from epochal.service.api.access import public
from epochal.service.api.context import Control

router = APIRouter(include_in_schema=False)

PAGE = "index.html"
ASSETS = "assets"
_METHODS = ["GET", "HEAD"]
_COMPRESSED = (".html", ".js", ".css", ".json", ".map", ".svg", ".txt")
_MOST_COMPRESSED = 100
"""Number of compressed files that stay in memory: more than a bundle has."""
_SEGMENT = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_HASHED = re.compile(r"[\w.-]*[.-][A-Za-z0-9_]{8,}\.[a-z0-9]+(\.map)?")
_WEIGHT = re.compile(r"q\s*=\s*([01](?:\.[0-9]{0,3})?)")
_TAGS = re.compile(r'(?:W/)?("[^"]*")')
_IMMUTABLE = "public, max-age=31536000, immutable"
_REVALIDATED = "no-cache"
_HTML = "text/html; charset=utf-8"
_TYPES = MappingProxyType(
    {
        ".html": _HTML,
        ".js": "text/javascript; charset=utf-8",
        ".css": "text/css; charset=utf-8",
        ".json": "application/json",
        ".map": "application/json",
        ".svg": "image/svg+xml",
        ".png": "image/png",
        ".ico": "image/x-icon",
        ".woff2": "font/woff2",
        ".txt": "text/plain; charset=utf-8",
    }
)
HEADERS = MappingProxyType(
    {
        "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }
)
_MISSING = b"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>Epochal</title></head>
<body>
<h1>The console is not installed</h1>
<p>This installation of Epochal does not contain the files of the console. Install the released package, or build the
console in the source tree. The command line and the REST API work without it.</p>
</body>
</html>
"""


@dataclass(frozen=True)
class _File:
    """``varies``: also served in compressed form. ``encoding``: that of ``content``."""

    content: bytes
    media_type: str
    caching: str
    varies: bool = False
    encoding: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the file, also in an answer with 304. Each form has an ETag of its own (RFC 9110, 8.8.3)."""
        found = {**HEADERS, "cache-control": self.caching, "etag": self.etag}
        return found | ({"vary": "accept-encoding"} if self.varies else {})

    @property
    def etag(self) -> str:
        return f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'

    def in_form_for(self, accepted: str) -> _File:
        """The compressed form, if the header ``Accept-Encoding`` allows it and it is smaller."""
        if not self.varies or not accepts_gzip(accepted):
            return self
        compressed = _compressed(self.content)
        if len(compressed) >= len(self.content):
            return self
        return replace(self, content=compressed, encoding="gzip")


@lru_cache(_MOST_COMPRESSED)
def _compressed(content: bytes) -> bytes:
    """Compressed once for each content, without a time stamp: the ETag stays the same after a restart."""
    return gzip.compress(content, 9, mtime=0)


def accepts_gzip(header: str) -> bool:
    """Evaluate a value of ``Accept-Encoding`` (RFC 9110, 12.5.3)."""
    weights: dict[str, float] = {}
    for item in header.lower().split(","):
        name, _, parameter = (part.strip() for part in item.partition(";"))
        weight = _WEIGHT.fullmatch(parameter) if parameter else None
        weights[name] = 1.0 if not parameter else float(weight[1]) if weight else 0.0
    return weights.get("gzip", weights.get("x-gzip", weights.get("*", 0.0))) > 0


class Bundle:
    """The files in a folder. They are read for each request: they are small, and may be replaced while the process
    runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def exists(self) -> bool:
        return (self._folder / PAGE).is_file()

    def find(self, path: str) -> _File | None:
        """The file at a path of a request, the page for the path of a view; ``None`` for a missing asset."""
        segments = path.split("/")
        found = self._read(segments)
        if found is None and segments[0] != ASSETS:
            found = self._read([PAGE])
        return found

    def _read(self, segments: list[str]) -> _File | None:
        """Only plain names are joined to the folder, and links are followed only within it."""
        if not all(map(_SEGMENT.fullmatch, segments)):
            return None
        file = self._folder.joinpath(*segments)
        try:
            if not file.is_file() or not file.resolve().is_relative_to(self._folder.resolve()):
                return None
            content = file.read_bytes()
        except OSError:
            return None
        is_hashed = segments[0] == ASSETS and _HASHED.fullmatch(segments[-1])
        media_type = _TYPES.get(file.suffix, "application/octet-stream")
        return _File(content, media_type, _IMMUTABLE if is_hashed else _REVALIDATED, file.suffix in _COMPRESSED)


@router.api_route("/console/{path:path}", methods=_METHODS)
@public
def console(path: str, request: Request, control: Control) -> Response:
    """A file of the console, or its page. Blocking: FastAPI runs it in a thread."""
    bundle = Bundle(control.settings.console)
    if not bundle.exists:
        return _answer(404, _File(_MISSING, _HTML, "no-store"))
    found = bundle.find(path)
    if found is None:
        return _answer(404, _File(b"There is no such file.\n", _TYPES[".txt"], "no-store"))
    served = found.in_form_for(",".join(request.headers.getlist("accept-encoding")))
    if _matches(request.headers.get("if-none-match"), served.etag):
        return Response(status_code=304, headers=served.headers)
    return _answer(200, served)


@router.api_route("/console", methods=_METHODS)
@public
def console_folder() -> Response:
    return RedirectResponse("/console/", headers=dict(HEADERS))


@router.api_route("/", methods=_METHODS)
@public
def start(request: Request, control: Control) -> Response:
    """Redirect browsers to the console, if it is installed. Programs get 404 as for any unknown path."""
    if "text/html" not in request.headers.get("accept", "") or not Bundle(control.settings.console).exists:
        raise HTTPException(404)
    return RedirectResponse("/console/", headers={**HEADERS, "vary": "accept", "cache-control": "no-cache"})


def _answer(status: int, file: _File) -> Response:
    """``Range`` is ignored, as RFC 9110 allows: a part of a compressed file could be joined with the other form."""
    headers = file.headers if status == 200 else {**HEADERS, "cache-control": file.caching}
    if file.encoding is not None:
        headers["content-encoding"] = file.encoding
    if status == 200:
        headers["accept-ranges"] = "none"
    return Response(file.content, status, headers, file.media_type)


def _matches(header: str | None, etag: str) -> bool:
    return header is not None and (header.strip() == "*" or etag in _TAGS.findall(header))
