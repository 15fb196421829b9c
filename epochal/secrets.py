"""Secrets by reference: a pipeline contains the location of a password, never the password.

A reference is ``env:NAME`` (an environment variable) or ``file:/path`` (a mounted file, without its last line break).
It is resolved in the process that connects: the driver, and the executors that run tasks of a source.

Other text can contain secrets too: the message of a server a password, a request path a token. :func:`redact` is
applied to all text that users see: logs, failures, problems, the audit log.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epochal.errors import OptionError
from epochal.store_variables import secret_values

HIDDEN = "***"
VARIABLES = "EPOCHAL_SECRET_"
"""Prefix of the environment variables that a control plane passes to its drivers."""
_OF_PROJECT = re.compile(r"EPOCHAL_PROJECT_[A-Z0-9_]+_SECRET_")
"""Prefix of the environment variables of a control plane with secrets of the drivers of a project."""
_SHORTEST = 4
"""Minimum length of values to redact: shorter values occur in any text."""
_TOKENS = re.compile(r"ep[tds]_[0-9a-f]{32}[._][\w.-]{40,}|whsec_[\w-]{16,}")
_PASSWORD = re.compile(r"(?<=://)([^\s/:@]*):[^\s/@]+@")
_SIGNATURE = re.compile(r"(?<=[?&])((?:sig|X-(?:Amz|Goog)-(?:Signature|Security-Token))=)[^&\s'\")]+", re.IGNORECASE)
"""Signatures in the URLs of object stores: a shared access signature, or that of a presigned request."""
_revealed: set[str] = set()
"""The secrets that this process has resolved."""


@dataclass(frozen=True)
class Secret:
    """A reference to a secret. Its text is the reference, so that logs, manifests and lineage can contain it."""

    reference: str

    def __post_init__(self) -> None:
        kind, separator, name = self.reference.partition(":")
        if kind not in ("env", "file") or not separator or not name:
            # The argument can be the secret itself, so the message does not repeat it.
            raise OptionError("A secret must be a reference of the form env:NAME or file:/path.")

    def reveal(self) -> str:
        """Resolve the secret. Raises ``OptionError`` with the reference if it does not exist."""
        found = self._find()
        _revealed.add(found)
        return found

    def _find(self) -> str:
        kind, _, name = self.reference.partition(":")
        if kind == "env":
            if name not in os.environ:
                raise OptionError(
                    f"Secret {self.reference}: the environment variable {name} is not set in this process. "
                    "Set it for the driver and the executors. A control plane passes variables named "
                    "EPOCHAL_SECRET_.. to its drivers."
                )
            return os.environ[name]
        try:
            return Path(name).read_text().removesuffix("\n")
        except OSError as error:
            raise OptionError(f"Secret {self.reference} cannot be read: {error.strerror}.") from None

    def __str__(self) -> str:
        return f"secret({self.reference})"

    __repr__ = __str__


def secret(reference: str) -> Secret:
    """A secret by reference, for an option of a connector. Raises ``OptionError`` for other text."""
    return Secret(reference)


def revealed(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with resolved secrets. Call it where a client is created, and do not store the result."""
    return {name: value.reveal() if isinstance(value, Secret) else value for name, value in options.items()}


def redacted(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without secrets, for users."""
    return {name: str(value) if isinstance(value, Secret) else value for name, value in options.items()}


def without_secrets(text: str, options: Mapping[str, Any]) -> str:
    """A message of other software (a server, a driver) without the secrets of these options."""
    for value in options.values():
        if isinstance(value, Secret):
            try:
                hidden = value.reveal()
            except OptionError:
                continue
            if hidden:
                text = text.replace(hidden, "***")
    return text


def redact(text: str) -> str:
    """``text`` without tokens, passwords and signatures in URLs, the values of ``EPOCHAL_SECRET_..`` variables and of
    secret variables of object stores, and the secrets that this process has resolved. Call it wherever text of other
    software leaves a process."""
    if "_" in text:
        text = _TOKENS.sub(HIDDEN, text)
    if "://" in text:
        text = _PASSWORD.sub(rf"\1:{HIDDEN}@", text)
        text = _SIGNATURE.sub(rf"\1{HIDDEN}", text)
    named = (value for name, value in os.environ.items() if name.startswith(VARIABLES) or _OF_PROJECT.match(name))
    for secret_value in sorted({*named, *secret_values(os.environ), *_revealed}, key=len, reverse=True):
        if len(secret_value) >= _SHORTEST:
            text = text.replace(secret_value, HIDDEN)
    return text
