"""Environment variables by which processes reach an object store: credentials, endpoint, proxy and authorities.

Each cloud's own chain reads them: keys, profiles, service account files, and what a platform injects into a pod for its
identity (IRSA and Pod Identity of EKS, workload identity of Azure). GKE and instance roles use no variable. A control
plane passes the variables of its store's cloud to drivers and builders, and a driver to the executors of a standalone
cluster.

The value of a variable can be a reference, ``secret(file:/path)`` or ``secret(env:NAME)``, which each process resolves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit

_AWS: Final = ("AWS_",)
_GOOGLE: Final = ("GOOGLE_", "CLOUDSDK_CONFIG", "GCE_METADATA_", "SERVICE_ACCOUNT")
_AZURE: Final = ("AZURE_", "IDENTITY_ENDPOINT", "IDENTITY_HEADER", "AZURITE_BLOB_STORAGE_URL")
_CLOUDS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("s3", "s3a"), _AWS),
    **dict.fromkeys(("gs", "gcs"), _GOOGLE),
    **dict.fromkeys(("az", "azure", "abfs", "abfss", "adl"), _AZURE),
}
"""Variables of each cloud, by the scheme of the store's URL. A name that ends with ``_`` is a prefix."""
_PROXIES: Final = frozenset({"HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy"})
_CONNECTION: Final = _PROXIES | {"SSL_CERT_FILE", "SSL_CERT_DIR"}

_OF_ONE_MACHINE: Final = frozenset(
    {
        *("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME"),
        *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
        *("AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
        *("AZURE_FEDERATED_TOKEN_FILE", "IDENTITY_ENDPOINT", "IDENTITY_HEADER"),
    }
)
"""Identity that a platform gives to one pod or machine. Another machine has its own, or none."""

SECRET_ENDINGS: Final = (
    *("SECRET", "TOKEN", "PASSWORD", "KEY", "KEY_BASE64", "SAS", "ACCESS_SIGNATURE", "CONNECTION_STRING"),
    *("IDENTITY_HEADER", "BEARER_TOKEN_BEDROCK"),
)
"""Endings of the names of variables with secret values. Names of files, roles and key ids have other endings."""
_SECRET: Final = re.compile(rf"(?:{'|'.join(SECRET_ENDINGS)})\Z")

_REFERENCE: Final = re.compile(r"secret\(\s*(?P<reference>(?:env|file):[^)]+?)\s*\)\Z")

REDACTED_BY_SPARK: Final = "(?i)secret|password|token|access[.]?key|credential"
"""Spark's default of ``spark.redaction.regex``, which misses names such as ``AZURE_STORAGE_ACCOUNT_KEY``."""
_EXECUTORS_SECRETS: Final = (
    rf"(?i)spark[.]executorEnv[.]\w*(?:{'|'.join(SECRET_ENDINGS)}|_PROXY)$|fs[.]azure[.](?:account[.]key|sas)[.]"
)


def is_object_store(store: str) -> bool:
    """Return whether the URL of a store has the scheme of an object store."""
    return _scheme(store) in _CLOUDS


def variables_for_store(environment: Mapping[str, str], store: str) -> dict[str, str]:
    """The variables of the cloud of ``store``, a URL; none where it is not an object store."""
    if not is_object_store(store):
        return {}
    return _selected(environment, _CLOUDS[_scheme(store)])


def object_store_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of all clouds, for a process that does not know its store yet, in an environment chosen for it."""
    return _selected(environment, (*_AWS, *_GOOGLE, *_AZURE))


def executor_variables(environment: Mapping[str, str], master: str, store: str) -> dict[str, str]:
    """The variables that a driver passes to its executors on other machines.

    Executors of a local master inherit them. Executors in pods have them from their template: Spark would copy the
    values into the pod's manifest, where users that can read pods can read them.
    """
    if not master.startswith("spark://"):
        return {}
    passed = variables_for_store(environment, store)
    return {name: value for name, value in passed.items() if name not in _OF_ONE_MACHINE}


def references_in(environment: Mapping[str, str], store: str) -> dict[str, str]:
    """The references to secrets among the variables of the cloud of ``store``, a URL, such as ``file:/path``."""
    found = {name: reference_in(value) for name, value in variables_for_store(environment, store).items()}
    return {name: reference for name, reference in found.items() if reference and name not in _CONNECTION}


def reference_in(value: str) -> str | None:
    """The reference of a value such as ``secret(file:/path)``; ``None`` for any other value."""
    found = _REFERENCE.match(value.strip())
    return found["reference"] if found else None


def is_secret_variable(name: str) -> bool:
    """Return whether the value of a variable of an object store is a secret."""
    return _is_selected(name, (*_AWS, *_GOOGLE, *_AZURE)) and _SECRET.search(name) is not None


def secret_values(environment: Mapping[str, str]) -> Iterator[str]:
    """Secret values among the variables, and passwords of proxies."""
    for name, value in environment.items():
        if is_secret_variable(name) and reference_in(value) is None:
            yield value
        elif name in _PROXIES and "@" in value and (password := urlsplit(value).password):
            yield password


def spark_redaction(authors: str | None) -> str:
    """The value of ``spark.redaction.regex`` that covers the variables of executors; ``authors``: the author's own."""
    return f"(?:{authors or REDACTED_BY_SPARK})|(?:{_EXECUTORS_SECRETS})"


def _scheme(store: str) -> str:
    scheme, separator, _ = store.partition("://")
    return scheme.lower() if separator else ""


def _selected(environment: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name in _CONNECTION or _is_selected(name, names)}


def _is_selected(name: str, names: tuple[str, ...]) -> bool:
    return any(name.startswith(each) if each.endswith("_") else name == each for each in names)
