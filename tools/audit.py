"""Known vulnerabilities of the locked packages: ``python -m tools.audit PIP-AUDIT FILE..``.

Runs pip-audit on requirement files with hashes, which it reads without installing or resolving anything. pip-audit
succeeds even if it could not look up a package; this command fails then.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

FOUND, UNKNOWN = 1, 2
"""Exit codes: a package has a known vulnerability; a package could not be looked up."""
SERVICE_VARIABLE = "AUDIT_SERVICE"
"""``pypi`` (the default) or ``osv``: the database to use."""
_SHOWN = 5


def report(program: str, files: Sequence[str], service: str) -> tuple[int, str]:
    """Return the exit code and the text to print."""
    options = ["--disable-pip", "--require-hashes", "--progress-spinner", "off", "--format", "json"]
    named = [each for file in files for each in ("--requirement", file)]
    command = [program, *options, "--vulnerability-service", service, *named]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        last = (done.stderr.strip().splitlines() or [f"pip-audit ended with {done.returncode}"])[-1]
        return UNKNOWN, f"The audit could not be run against the database {service!r}: {last}\n{_NEXT}"
    vulnerable = [line for package in packages for line in _vulnerabilities(package)]
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    checked = len(packages) - len(skipped)
    lines = [*vulnerable, f"{checked} of {len(packages)} packages checked, {len(vulnerable)} known vulnerabilities."]
    if skipped or not packages:
        names = ", ".join(skipped[:_SHOWN]) + (", .." if len(skipped) > _SHOWN else "")
        lines.append(f"The database {service!r} did not answer for {len(skipped)} packages ({names}). {_NEXT}")
    code = FOUND if vulnerable else UNKNOWN if skipped or not packages else 0
    return code, "\n".join(lines)


_NEXT = (
    "Packages that were not checked can have vulnerabilities. Run the audit on a machine that can reach PyPI's "
    f"database, or OSV's with {SERVICE_VARIABLE}=osv."
)


def _vulnerabilities(package: Mapping[str, Any]) -> Iterator[str]:
    for found in package.get("vulns", ()):
        names = ", ".join([found["id"], *found.get("aliases", ())])
        versions = ", ".join(found.get("fix_versions", ())) or "no version"
        yield f"{package['name']} {package['version']}: {names}; fixed in {versions}"


if __name__ == "__main__":
    code, text = report(sys.argv[1], sys.argv[2:], os.environ.get(SERVICE_VARIABLE, "pypi"))
    print(text)
    sys.exit(code)
