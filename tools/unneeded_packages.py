"""Lists packages that a distribution does not need: ``python tools/unneeded_packages.py "epochal[postgresql]"``.

The image installs all packages of ``requirements.lock`` with their hashes, and removes these.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, distribution, distributions

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

KEPT = {"pip"}
"""pip removes the other packages."""


def needed(root: str) -> set[str]:
    """Return the names of ``root`` and its installed dependencies. Raises ``PackageNotFoundError``."""
    distribution(Requirement(root).name)
    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    pending = [Requirement(root)]
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        extras = {"", *requirement.extras} - {extra for known, extra in seen if known == name}
        try:
            requires = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        found.add(name)
        seen |= {(name, extra) for extra in extras}
        for further in map(Requirement, requires):
            if any(further.marker is None or further.marker.evaluate({"extra": extra}) for extra in extras):
                pending.append(further)
    return found


def unneeded(root: str) -> list[str]:
    there = {canonicalize_name(each.name) for each in distributions()}
    return sorted(there - needed(root) - KEPT)


if __name__ == "__main__":
    print("\n".join(unneeded(sys.argv[1])))
