"""A web server that reloads its TLS certificate, if it has one, while it serves."""

from __future__ import annotations

import logging
import time

import uvicorn

from epochal.errors import OptionError
from epochal.service.domain.setting_sections import Tls
from epochal.service.runtime.certificates import check_certificate

log = logging.getLogger("epochal.tls")

LOOK_SECONDS = 1.0
_Version = tuple[int, int, int, int]


class TlsServer(uvicorn.Server):
    """New connections use the certificate in the files of ``tls``; ``None``: connections are not encrypted. The two
    files may be replaced one after the other: a certificate and a key that do not match are not loaded."""

    def __init__(self, config: uvicorn.Config, tls: Tls | None) -> None:
        super().__init__(config)
        self._tls = tls
        self._looked_at = time.monotonic()
        self._served = _version(tls)
        self._refused: _Version | None = None

    async def on_tick(self, counter: int) -> bool:
        """Called by the event loop, so that no handshake runs during a reload."""
        if self._tls is not None and time.monotonic() >= self._looked_at + LOOK_SECONDS:
            self._looked_at = time.monotonic()
            self._look(self._tls)
        return await super().on_tick(counter)

    def _look(self, tls: Tls) -> None:
        version = _version(tls)
        if version in (None, self._served, self._refused) or self.config.ssl is None:
            return
        try:
            check_certificate(tls)
            self.config.ssl.load_cert_chain(tls.certificate, tls.key)
        except (OptionError, OSError) as error:
            log.error("the certificate was replaced by one that cannot be used; the old one is served: %s", error)
            self._refused = version
            return
        self._served, self._refused = version, None
        log.info("the certificate in %s is served from now on", tls.certificate)


def _version(tls: Tls | None) -> _Version | None:
    """Changes whenever one of the files changes, also if they are symbolic links that are switched (as in a mounted
    Secret)."""
    if tls is None:
        return None
    try:
        certificate, key = tls.certificate.stat(), tls.key.stat()
    except OSError:
        return None
    return certificate.st_mtime_ns, certificate.st_ino, key.st_mtime_ns, key.st_ino
