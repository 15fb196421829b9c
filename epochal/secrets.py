"""Secrets by reference: a pipeline names where a password is, never the password.

A reference is ``env:NAME`` (an environment variable) or ``file:/path`` (a mounted file, its last line break left out).
It is looked up in the process that connects: the driver, and the executors where a source's tasks read.

What is a secret all the same gets into texts of others: a server's message has a password in it, a caller has put a
token into a path. :func:`redact` is the one rule for what people see: logs, failures, problems, the audit log.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epochal.errors import OptionError

HIDDEN = "***"
VARIABLES = "EPOCHAL_SECRET_"
_OF_PROJECT = re.compile(r"EPOCHAL_PROJECT_[A-Z0-9_]+_SECRET_")
"""How variables of a control plane begin that are secrets of a project's drivers."""
"""With which names of environment variables begin that a control plane hands on to its drivers."""
_SHORTEST = 4
"""What is shorter is found in any text, and is no secret."""
_TOKENS = re.compile(r"ep[td]_[0-9a-f]{32}[._][\w.-]{40,}|whsec_[\w-]{16,}")
_PASSWORD = re.compile(r"(?<=://)([^\s/:@]*):[^\s/@]+@")
_revealed: set[str] = set()
"""What this process has looked up."""


@dataclass(frozen=True)
class Secret:
    """A reference to a secret. Its text is the reference, so that it may stand in logs, manifests and lineage."""

    reference: str

    def __post_init__(self) -> None:
        kind, separator, name = self.reference.partition(":")
        if kind not in ("env", "file") or not separator or not name:
            # What was given may be the secret itself: it is not repeated.
            raise OptionError("A secret is named by where it is, env:NAME or file:/path; what was given is neither.")

    def reveal(self) -> str:
        """The secret itself. Raises ``OptionError`` naming the reference when there is none."""
        found = self._find()
        _revealed.add(found)
        return found

    def _find(self) -> str:
        kind, _, name = self.reference.partition(":")
        if kind == "env":
            if name not in os.environ:
                raise OptionError(
                    f"Secret {self.reference}: there is no environment variable {name} in this process. "
                    "Set it where the driver and the executors start; a control plane hands on to its drivers what is "
                    "named EPOCHAL_SECRET_..."
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
    """A secret by reference, for a connector's option. Raises ``OptionError`` for anything but a reference."""
    return Secret(reference)


def revealed(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with every secret looked up. To be called where a client is made, and kept nowhere."""
    return {name: value.reveal() if isinstance(value, Secret) else value for name, value in options.items()}


def redacted(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as people may see them."""
    return {name: str(value) if isinstance(value, Secret) else value for name, value in options.items()}


def without_secrets(text: str, options: Mapping[str, Any]) -> str:
    """A message of somebody else's (a server, a driver) with every secret of these options blanked."""
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
    """``text`` as people may see it: without tokens, passwords in URLs, the values of ``EPOCHAL_SECRET_..`` variables,
    and whatever this process has looked up. To be called wherever text of others leaves a process."""
    if "_" in text:
        text = _TOKENS.sub(HIDDEN, text)
    if "://" in text:
        text = _PASSWORD.sub(rf"\1:{HIDDEN}@", text)
    named = (value for name, value in os.environ.items() if name.startswith(VARIABLES) or _OF_PROJECT.match(name))
    for secret_value in sorted({*named, *_revealed}, key=len, reverse=True):
        if len(secret_value) >= _SHORTEST:
            text = text.replace(secret_value, HIDDEN)
    return text
