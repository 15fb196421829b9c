"""Checks of a server's certificate and key before the server starts."""

from __future__ import annotations

import ssl
from typing import Any

from epochal.errors import OptionError
from epochal.service.domain.setting_sections import Tls


def check_certificate(tls: Tls) -> None:
    """Raises ``OptionError`` unless the files are a certificate and its key, without a passphrase."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.certificate, tls.key, password=_no_passphrase)
    except (OSError, ValueError) as error:
        raise OptionError(
            f"{tls.certificate} and {tls.key} are not a certificate and its key in PEM, without a passphrase: {error}."
        ) from None


def encrypted_by(tls: Tls | None) -> dict[str, Any]:
    """Arguments of ``uvicorn.Config``."""
    return {} if tls is None else {"ssl_certfile": str(tls.certificate), "ssl_keyfile": str(tls.key)}


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase")
