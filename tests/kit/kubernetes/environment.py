"""A container's environment, command and downward volumes, computed from the pod's manifest by pure functions."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

Manifest = Mapping[str, Any]
Data = Callable[[str, str, bool], Mapping[str, str] | None]
"""Function ``(kind, name, optional)`` for ``configmaps`` or ``secrets``: the decoded data, ``None`` if it is
missing."""

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
_MAP_ENTRY = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
_UNITS = {
    "m": Decimal("0.001"),
    "": Decimal(1),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
}
_QUANTITY = re.compile(r"([0-9.]+)([A-Za-z]*)")


class MissingObject(Exception):
    """An object that the pod refers to does not exist (yet)."""


@dataclass(frozen=True)
class Place:
    """The place of a pod, which its manifest does not contain."""

    node: str
    node_address: str
    address: str


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Replace ``$(NAME)`` by its value. Unknown names are unchanged; ``$$`` is a dollar, so ``$$(NAME)`` is not
    replaced."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[1] is None else variables.get(found[1], found[0])

    return _REFERENCE.sub(value, text)


def variables_of(pod: Manifest, container: Manifest, place: Place, data: Data) -> dict[str, str]:
    """Return the variables of ``envFrom`` and ``env``; later ones override others. Raises :class:`MissingObject`."""
    found: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        for kind, reference in _references(source):
            content = data(kind, reference["name"], bool(reference.get("optional"))) or {}
            found |= {source.get("prefix", "") + name: value for name, value in content.items()}
    for variable in container.get("env") or ():
        origin = variable.get("valueFrom")
        if origin is None:
            found[variable["name"]] = expanded(str(variable.get("value") or ""), found)
        elif (value := _value_from(origin, pod, container, place, data)) is not None:
            found[variable["name"]] = value
    return found


def _references(source: Manifest) -> Sequence[tuple[str, Manifest]]:
    kinds = {"configMapRef": "configmaps", "secretRef": "secrets"}
    return [(kind, source[name]) for name, kind in kinds.items() if name in source]


def _value_from(origin: Manifest, pod: Manifest, container: Manifest, place: Place, data: Data) -> str | None:
    if "fieldRef" in origin:
        return field(pod, place, origin["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in origin:
        return resource(container, origin["resourceFieldRef"])
    kind, reference = (
        ("configmaps", origin["configMapKeyRef"])
        if "configMapKeyRef" in origin
        else ("secrets", origin["secretKeyRef"])
    )
    optional = bool(reference.get("optional"))
    content = data(kind, reference["name"], optional)
    if content is None or reference["key"] not in content:
        if optional:
            return None
        raise MissingObject(f"couldn't find key {reference['key']} in {kind} {reference['name']}")
    return content[reference["key"]]


def field(pod: Manifest, place: Place, path: str) -> str:
    """Return a field of the downward API; labels and annotations have one line each."""
    metadata = pod["metadata"]
    if (one := _MAP_ENTRY.fullmatch(path)) is not None:
        return str((metadata.get(one[1]) or {}).get(one[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        lines = (metadata.get(path.partition(".")[2]) or {}).items()
        return "".join(f"{name}={_quoted(value)}\n" for name, value in sorted(lines))
    known = {
        "status.podIP": place.address,
        "status.podIPs": place.address,
        "status.hostIP": place.node_address,
        "status.hostIPs": place.node_address,
        "spec.nodeName": place.node,
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName", "default"),
        **{f"metadata.{name}": str(metadata.get(name, "")) for name in ("name", "namespace", "uid")},
    }
    return str(known[path])


def resource(container: Manifest, reference: Manifest) -> str:
    """Return a limit or request of the container in units of the divisor, rounded up; 0 if it is not set."""
    kind, _, name = str(reference["resource"]).partition(".")
    amount = ((container.get("resources") or {}).get(kind) or {}).get(name)
    divisor = quantity(str(reference.get("divisor") or "1"))
    return "0" if amount is None else str(math.ceil(quantity(str(amount)) / (divisor or 1)))


def quantity(text: str) -> Decimal:
    """Parse ``500m``, ``1.5Gi`` or ``2`` as a number."""
    found = _QUANTITY.fullmatch(text)
    if found is None or found[2] not in _UNITS:
        raise ValueError(f"{text!r} is not a quantity")
    return Decimal(found[1]) * _UNITS[found[2]]


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
