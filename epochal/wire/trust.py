"""Files of certificate authorities: of the control plane's certificate, and of databases."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from typing import Any

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


def check_database_authority(options: Mapping[str, Any]) -> None:
    """Raises ``OptionError`` for a missing file with the certificates to trust: libpq does not verify the server then,
    if ``sslmode`` is ``require`` or weaker."""
    for name in ("sslrootcert", "ssl_ca"):
        file = options.get(name)
        if file is not None and (name, file) != ("sslrootcert", "system") and not os.access(file, os.R_OK):
            raise OptionError(
                f"The option {name} of a database names {file}, which does not exist here or cannot be read: "
                "the server's certificate would not be verified. The file has to be where the driver and the executors "
                "run."
            )
