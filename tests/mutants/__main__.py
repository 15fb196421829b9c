"""``python -m tests.mutants``: checks that the tests detect every deliberately wrong protocol."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time

from tests.mutants.mutants import MUTANTS, Mutant

TESTS_FAILED = 1
TIMEOUT_SECONDS = 300
"""Time limit of one test. A test that exceeds it does not count as a detection."""
_BROKEN = re.compile(r"^tests/mutants/\w+\.py:\d+: (?:Attribute|Import|Name|Type)Error$", re.MULTILINE)
"""In pytest's output: the change itself failed, since it names what no longer exists. Its failure detects nothing."""


def main() -> int:
    pattern = sys.argv[1] if len(sys.argv) > 1 else ""
    chosen = [mutant for mutant in MUTANTS if pattern in mutant.name]
    for tests in dict.fromkeys(mutant.tests for mutant in chosen):
        unchanged = _run(tests, None)
        if unchanged.returncode != 0:
            print(f"!!  {tests} fail without any mutant, so they detect none:\n{unchanged.stdout[-2000:]}")
            return 2
    missed = [mutant for mutant in chosen if not _detected(mutant)]
    print(f"\n{len(chosen) - len(missed)} of {len(chosen)} mutants were detected.")
    return 1 if missed else 0


def _detected(mutant: Mutant) -> bool:
    started = time.monotonic()
    run = _run(mutant.tests, mutant)
    failed = [line for line in run.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]  # also of fixtures
    timed_out = any("Timeout" in line for line in failed)
    how = f"detected by {failed[0].split()[1]}" if failed else f"NOT detected (pytest ended with {run.returncode})"
    if timed_out:
        how = f"NOT detected: {failed[0].split()[1]} took longer than {TIMEOUT_SECONDS} s"
    broken = _BROKEN.search(run.stdout)
    if broken:
        how = f"NOT detected: the mutant is out of date: {broken[0]}"
    detected = bool(failed) and not timed_out and not broken and run.returncode == TESTS_FAILED
    print(f"{'ok ' if detected else '!! '} {mutant.name}: {how}, {time.monotonic() - started:.0f} s", flush=True)
    if not failed and run.returncode not in (0, TESTS_FAILED):
        print(run.stdout[-2000:] + run.stderr[-2000:])
    return detected


def _run(tests: str, mutant: Mutant | None) -> subprocess.CompletedProcess[str]:
    """Run the tests of a usual run, up to the first failure, on the code with or without the mutant's change."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-m",
        "not long or alternating",
        "--seed=5",
        f"--timeout={TIMEOUT_SECONDS}",
    ]
    command += ["-p", "tests.mutants.plugin", "--hypothesis-profile", "mutants", *tests.split()]
    environment = os.environ | {"EPOCHAL_MUTANT": "" if mutant is None else mutant.name}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    sys.exit(main())
