"""Address of an Iceberg table: its catalog, and its name in it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from epochal.addresses import check_server
from epochal.errors import OptionError
from epochal.secrets import Secret

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

KINDS: Final = ("rest", "sql", "glue", "hive")
_SECRET: Final = ("token", "credential", "secret", "password", "account-key", "sas-token")
"""Parts of the names of properties whose values must be secrets."""
_CLASSES: Final = ("py-catalog-impl", "py-io-impl")
"""Properties that name classes to load."""
_CONNECT_SECONDS: Final = 5
_ANSWER_SECONDS: Final = 60
_FILES: Final = "pyiceberg.io.pyarrow.PyArrowFileIO"
_connected: dict[tuple[int, CatalogAddress], Catalog] = {}
"""Catalogs by process and address. A REST catalog has a session with a token."""


@dataclass(frozen=True)
class CatalogAddress:
    """A catalog. ``properties``: those of pyiceberg, by name; secrets as references. Serialisable."""

    name: str
    properties: tuple[tuple[str, str | Secret], ...]

    @classmethod
    def checked(cls, what: str, name: str, properties: Mapping[str, Any]) -> CatalogAddress:
        """Raises ``OptionError``."""
        if not properties.get("type") and not properties.get("uri"):
            raise OptionError(
                f"{what} needs a catalog, such as catalog={{'type': 'rest', 'uri': 'https://catalog.example.org'}}."
            )
        for key, value in properties.items():
            _check_property(what, key, value)
        kind = properties.get("type", "rest")
        if kind not in KINDS:
            raise OptionError(f"{what}: the catalog's type is {kind!r}; types are {', '.join(KINDS)}.")
        if kind == "rest":
            parts = urlsplit(str(properties.get("uri", "")))
            if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
                raise OptionError(f"{what}: the catalog's uri must be a URL such as 'https://catalog.example.org'.")
            check_server(what, parts.hostname)
        return cls(name, tuple(sorted({**properties, "type": kind}.items())))

    @property
    def place(self) -> str:
        """The catalog for people, without secrets: its URI, or its type."""
        properties = dict(self.properties)
        uri = properties.get("uri", "")
        if isinstance(uri, Secret) or "@" in uri:
            return f"{properties['type']}:{self.name}"
        return uri or f"{properties['type']}:{self.name}"

    @property
    def described(self) -> dict[str, str]:
        """The properties for users; of secrets, the references."""
        return {name: value.reference if isinstance(value, Secret) else value for name, value in self.properties}

    @property
    def secret_names(self) -> frozenset[str]:
        return frozenset(name for name, value in self.properties if isinstance(value, Secret))

    def revealed(self) -> dict[str, str]:
        """The library's properties, with the values of secrets. Raises ``OptionError`` for one that is missing."""
        values = {name: value.reveal() if isinstance(value, Secret) else value for name, value in self.properties}
        return {**values, "py-io-impl": _FILES}

    def connect(self) -> Catalog:
        """The catalog, in this process. Raises errors of the library."""
        from pyiceberg.catalog import load_catalog

        key = (os.getpid(), self)
        if key not in _connected:
            catalog = load_catalog(self.name, **self.revealed())
            limit_requests(catalog)
            _connected[key] = catalog
        return _connected[key]


@dataclass(frozen=True)
class IcebergAddress:
    """A table of a catalog. ``table``: its full name, ``namespace.table``."""

    catalog: CatalogAddress
    table: str

    @classmethod
    def checked(cls, what: str, table: str, catalog_name: str, properties: Mapping[str, Any]) -> IcebergAddress:
        """Raises ``OptionError``."""
        parts = table.split(".")
        if len(parts) < 2 or not all(parts):
            raise OptionError(f"{what}: {table!r} must be the full name of a table, such as 'sales.orders'.")
        return cls(CatalogAddress.checked(what, catalog_name, properties), table)

    @property
    def target(self) -> str:
        return f"iceberg:{self.catalog.place}/{self.table}"


def limit_requests(catalog: Catalog) -> None:
    """Limit the duration of requests to a REST catalog, for which the library has no option: a commit must not wait
    forever for a server that accepts connections and does not answer."""
    import requests
    from requests.adapters import HTTPAdapter

    class Limited(HTTPAdapter):
        def send(self, *arguments: Any, **options: Any) -> requests.Response:
            options["timeout"] = options.get("timeout") or (_CONNECT_SECONDS, _ANSWER_SECONDS)
            return super().send(*arguments, **options)

    session = getattr(catalog, "_session", None)
    if session is not None:
        session.mount("http://", Limited())
        session.mount("https://", Limited())


def _check_property(what: str, name: Any, value: Any) -> None:
    if not isinstance(name, str) or not isinstance(value, str | Secret) or value == "":
        raise OptionError(f"{what}: the catalog's properties must be texts or secrets, and {name!r} is not.")
    if name in _CLASSES:
        raise OptionError(f"{what}: the catalog's property {name!r} is not supported. Remove it.")
    if name == "uri" and isinstance(value, str) and urlsplit(value).password is not None:
        raise OptionError(
            f"{what}: the catalog's uri has a password. Make it a secret: 'uri': secret('env:NAME'), or leave it out."
        )
    if any(part in name.lower() for part in _SECRET) and not isinstance(value, Secret):
        # The value can be the secret itself, so the message does not repeat it.
        raise OptionError(f"{what}: the catalog's property {name!r} must be a secret: secret('env:NAME').")
