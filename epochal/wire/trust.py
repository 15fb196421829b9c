"""Certificate authorities of control planes and databases."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from typing import Any

from epochal.errors import OptionError

CA_VARIABLE = "EPOCHAL_CA_FILE"
"""File with trusted certificates (PEM) for control planes; the default is the system's."""


def trusted() -> ssl.SSLContext | bool:
    """Value for the argument ``verify`` of ``httpx``. Raises ``OptionError`` for a file without certificates."""
    file = os.environ.get(CA_VARIABLE)
    if not file:
        return True
    try:
        return ssl.create_default_context(cafile=file)
    except OSError as error:
        raise OptionError(
            f"{CA_VARIABLE} names {file}, which contains no certificates in PEM format: {error}."
        ) from None


def check_database_authority(options: Mapping[str, Any]) -> None:
    """Raises ``OptionError`` for a missing certificate file. With ``sslmode`` ``require`` or weaker, libpq would not
    verify the server without it."""
    for name in ("sslrootcert", "ssl_ca"):
        file = options.get(name)
        if file is not None and (name, file) != ("sslrootcert", "system") and not os.access(file, os.R_OK):
            raise OptionError(
                f"The option {name} of a database names {file}, which does not exist or is not readable: "
                "the server's certificate would not be verified. The driver and the executors need the file."
            )
