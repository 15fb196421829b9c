"""Which authorities are trusted to name a control plane that speaks TLS."""

from __future__ import annotations

import os
import ssl

from epochal.errors import OptionError

CA_VARIABLE = "EPOCHAL_CA_FILE"
"""A file with certificates (PEM), of which one stands behind the control plane's; else the system's are trusted."""


def trusted() -> ssl.SSLContext | bool:
    """As ``httpx`` takes it for ``verify``. Raises ``OptionError`` for a file that holds no certificates."""
    file = os.environ.get(CA_VARIABLE)
    if not file:
        return True
    try:
        return ssl.create_default_context(cafile=file)
    except OSError as error:
        raise OptionError(f"{CA_VARIABLE} names {file}, which holds no certificates in PEM: {error}.") from None
