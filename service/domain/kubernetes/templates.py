"""Merging of a pod template with Epochal's defaults and requirements.

A pod template has ``metadata`` (labels, annotations) and ``spec``. It overrides Epochal's defaults, and Epochal's
requirements override it. The rules, in this order:

1. Maps are merged name by name.
2. Lists whose elements have a name are merged by it: containers element by element; volumes, variables, mounts (by
   their path), pull secrets and host aliases as wholes, the later one in the place of the earlier.
3. Tolerations, spread constraints and sources of variables are appended.
4. Everything else, including other lists, is replaced.

Epochal's container is ``driver`` in a driver's pod and ``executor`` in an executor's; a template can add others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

Manifest = Mapping[str, Any]

_MERGED_BY: Final = {"containers": "name", "initContainers": "name"}
_REPLACED_BY: Final = {
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "hostAliases": "ip",
}
_ADDED: Final = frozenset({"tolerations", "topologySpreadConstraints", "envFrom"})


def merged(below: Manifest, above: Manifest) -> dict[str, Any]:
    """``above`` over ``below``, by the rules of this module. Neither is changed."""
    result = dict(below)
    for name, value in above.items():
        result[name] = _merged_value(name, below[name], value) if name in below else value
    return result


def for_container(template: Manifest, written_for: str, name: str) -> dict[str, Any]:
    """The template for a pod whose container has another name and its own size."""
    spec = template.get("spec")
    if not isinstance(spec, Mapping) or "containers" not in spec:
        return dict(template)
    containers = [
        {**{key: value for key, value in each.items() if key != "resources"}, "name": name}
        if each.get("name") == written_for
        else dict(each)
        for each in spec["containers"]
    ]
    return {**template, "spec": {**spec, "containers": containers}}


def _merged_value(name: str, below: Any, above: Any) -> Any:
    if isinstance(below, Mapping) and isinstance(above, Mapping):
        return merged(below, above)
    if not _are_lists(below, above):
        return above
    if name in _ADDED:
        return [*below, *(element for element in above if element not in below)]
    if name in _MERGED_BY:
        return _by_key(_MERGED_BY[name], below, above, merged)
    if name in _REPLACED_BY:
        return _by_key(_REPLACED_BY[name], below, above, lambda _, later: dict(later))
    return above


def _by_key(
    key: str,
    below: Sequence[Manifest],
    above: Sequence[Manifest],
    combined: Callable[[Manifest, Manifest], dict[str, Any]],
) -> list[dict[str, Any]]:
    """In the order of ``below``, followed by new elements."""
    later = {element.get(key): element for element in above}
    kept = [
        combined(element, later[element.get(key)]) if element.get(key) in later else dict(element) for element in below
    ]
    known = {element.get(key) for element in below}
    return [*kept, *(dict(element) for element in above if element.get(key) not in known)]


def _are_lists(*values: Any) -> bool:
    return all(isinstance(value, Sequence) and not isinstance(value, str) for value in values)
