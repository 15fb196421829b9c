"""Address of a Delta table: a folder of a local file system or of an object store, and how the library reaches it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from epochal.addresses import check_location
from epochal.backends.object_files.address import ObjectLocation, check_local, without_store_options
from epochal.errors import OptionError
from epochal.pipeline.definitions import absolute
from epochal.snapshots.object_store import PATIENCE_SECONDS
from epochal.snapshots.store_credentials import connection_settings, endpoint_of
from epochal.store_variables import is_object_store

UNSAFE: Final = "AWS_S3_ALLOW_UNSAFE_RENAME"
"""Variable with which the library writes log entries to S3 without a condition."""


@dataclass(frozen=True)
class DeltaAddress:
    """A table's folder. ``place``: on an object store, with credentials; ``None``: ``url`` is a local path."""

    url: str
    place: ObjectLocation | None = None

    @classmethod
    def checked(cls, what: str, path: str, options: Mapping[str, Any]) -> tuple[DeltaAddress, dict[str, Any]]:
        """The address, and the options that are not of an object store. Raises ``OptionError``."""
        if not path.strip():
            raise OptionError(f"{what} needs the path of a table: a folder, or a URL such as s3://bucket/orders.")
        check_location(what, path)
        store_options, others = without_store_options(options)
        if is_object_store(path):
            place = ObjectLocation.checked(what, path, store_options)
            return cls(place.url, place), others
        check_local(what, path, store_options)
        if "://" in path:
            raise OptionError(
                f"{what}: {path!r} is neither a local path nor on S3, GCS or Azure, which are all that the library "
                "reaches."
            )
        return cls(absolute(path)), others

    @property
    def target(self) -> str:
        return f"delta:{self.url}"

    @property
    def described(self) -> dict[str, Any]:
        """Options for users; of secrets, the references."""
        return {} if self.place is None else self.place.address.described

    def storage_options(self) -> dict[str, str]:
        """Options of the library: credentials by the same chain as those of the snapshot store.

        Raises ``OptionError`` for a secret that cannot be found, and ``PermissionError``.
        """
        if self.place is None:
            return {}
        scheme = self.place.address.url.partition("://")[0]
        settings = self.place.address.settings()
        found = connection_settings(scheme, settings)
        options: dict[str, Any] = dict(found["config"])
        provider: Callable[[], Mapping[str, Any]] | None = found.get("credential_provider")
        if provider is not None:
            keys = dict(provider())
            keys.pop("expires_at", None)
            token = keys.pop("token", None)
            options |= keys | ({"session_token": token} if token else {})
        if endpoint_of(scheme, settings).startswith("http://"):
            options["allow_http"] = True
        options["retry_timeout"] = f"{PATIENCE_SECONDS:g}s"
        return {name: as_text(value) for name, value in options.items() if value is not None}


def as_text(value: Any) -> str:
    """A value as the options and the log of a table have it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
