"""Endpoint and credentials of an object store, from the environment of the process.

The library follows each cloud's own chain: variables, web identity, container, instance. This module adds two sources:
the static keys of a profile of S3 (``AWS_PROFILE``), and variables whose value refers to a secret, such as
``AWS_SECRET_ACCESS_KEY=secret(file:/run/secrets/key)``. Referenced keys of S3 are read again every few minutes, so that
they can be renewed while the process runs.
"""

from __future__ import annotations

import configparser
import errno
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from epochal.errors import OptionError
from epochal.secrets import Secret
from epochal.store_variables import references_in

_S3: Final = frozenset({"s3", "s3a"})
_KEYS: Final = ("access_key_id", "secret_access_key", "session_token")
_KEPT: Final = timedelta(minutes=10)
"""The library asks again five minutes before keys expire."""


def connection_settings(scheme: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of the library for a store: its configuration, and a provider of keys where it needs one.

    ``settings`` take precedence over the environment; keys among them are not combined with a session token of the
    environment. Raises ``PermissionError`` for a profile without keys and for a secret that cannot be found.
    """
    own = {name: value for name, value in settings.items() if name not in _KEYS}
    if "access_key_id" in settings:
        return {"config": own, "credential_provider": lambda: _keys(settings, None)}
    found = _referenced(os.environ, scheme)
    if scheme not in _S3:
        return {"config": {name.lower(): _revealed(name, secret) for name, secret in found.items()} | own}
    names = {f"AWS_{key.upper()}" for key in _KEYS}
    others = {name.lower(): _revealed(name, secret) for name, secret in found.items() if name not in names}
    if not names & found.keys():
        return {"config": {**(_profile(os.environ) or {}), **others, **own}}
    provider = _renewed(os.environ.copy())
    provider()
    return {"config": others | own, "credential_provider": provider}


def endpoint_of(scheme: str, settings: Mapping[str, Any]) -> str:
    """The endpoint of a store; ``""`` for that of its cloud."""
    if endpoint := settings.get("endpoint"):
        return str(endpoint)
    names = (
        ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT") if scheme in _S3 else ("AZURE_STORAGE_ENDPOINT",)
    )
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def _renewed(environment: Mapping[str, str]) -> Callable[[], dict[str, Any]]:
    """A provider of the keys of S3 that resolves references when it is called."""

    def provider() -> dict[str, Any]:
        found = _referenced(environment, "s3")
        keys = {}
        for key in _KEYS:
            name = f"AWS_{key.upper()}"
            keys[key] = _revealed(name, found[name]) if name in found else environment.get(name)
        if not keys["access_key_id"]:
            raise PermissionError(errno.EACCES, "AWS_ACCESS_KEY_ID is not set, and other keys of S3 are")
        return _keys(keys, datetime.now(UTC) + _KEPT)

    return provider


def _referenced(environment: Mapping[str, str], scheme: str) -> dict[str, Secret]:
    return {name: Secret(reference) for name, reference in references_in(environment, f"{scheme}://").items()}


def _revealed(name: str, secret: Secret) -> str:
    try:
        return secret.reveal()
    except OptionError as error:
        raise PermissionError(errno.EACCES, f"{name}: {error.message}") from None


def _keys(keys: Mapping[str, Any], expires_at: datetime | None) -> dict[str, Any]:
    key, secret, token = (keys.get(name) for name in _KEYS)
    return {"access_key_id": key, "secret_access_key": secret or "", "token": token, "expires_at": expires_at}


def _profile(environment: Mapping[str, str]) -> Any:
    """Static keys and the region of the profile ``AWS_PROFILE``, or ``default``, of S3's credentials and configuration
    files; ``None`` if the environment has credentials, or there is no such profile."""
    chain = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI")
    if any(environment.get(name) for name in (*chain, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")):
        return None
    home = Path(environment.get("HOME", "/")) / ".aws"
    files = configparser.ConfigParser(interpolation=None)
    try:
        files.read(
            [
                environment.get("AWS_CONFIG_FILE") or home / "config",
                environment.get("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials",
            ]
        )
    except configparser.Error as error:
        raise PermissionError(errno.EACCES, f"the files of AWS profiles are invalid: {error}") from None
    name = environment.get("AWS_PROFILE") or "default"
    sections = [section for section in (f"profile {name}", name) if files.has_section(section)]
    found = {key: value for section in sections for key, value in files.items(section)}
    if "aws_access_key_id" not in found:
        if environment.get("AWS_PROFILE"):
            raise PermissionError(
                errno.EACCES,
                f"the profile {name} has no aws_access_key_id; profiles of roles and SSO are not supported",
            )
        return None
    config = {"access_key_id": found["aws_access_key_id"], "secret_access_key": found.get("aws_secret_access_key", "")}
    if "aws_session_token" in found:
        config["session_token"] = found["aws_session_token"]
    if "region" in found and not (environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")):
        config["region"] = found["region"]
    return config
