"""``python -m tests.mutants``: every deliberately wrong protocol has to be noticed by the tests."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from tests.mutants.mutants import MUTANTS, Mutant

NOTICED = 1
SECONDS = 300
"""For a test. One that takes longer shows nothing of a mutant: it may do so without."""


def main() -> int:
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    chosen = [mutant for mutant in MUTANTS if wanted in mutant.name]
    for tests in dict.fromkeys(mutant.tests for mutant in chosen):
        unchanged = _run(tests, None)
        if unchanged.returncode != 0:
            print(f"!!  {tests} fail without any mutant, so they catch none:\n{unchanged.stdout[-2000:]}")
            return 2
    missed = [mutant for mutant in chosen if not _noticed(mutant)]
    print(f"\n{len(chosen) - len(missed)} of {len(chosen)} mutants were caught.")
    return 1 if missed else 0


def _noticed(mutant: Mutant) -> bool:
    started = time.monotonic()
    run = _run(mutant.tests, mutant)
    failed = [line for line in run.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]  # or its fixtures
    too_long = any("Timeout" in line for line in failed)
    how = f"caught by {failed[0].split()[1]}" if failed else f"NOT caught (pytest ended with {run.returncode})"
    if too_long:
        how = f"NOT caught: {failed[0].split()[1]} took longer than {SECONDS} s"
    noticed = bool(failed) and not too_long and run.returncode == NOTICED
    print(f"{'ok ' if noticed else '!! '} {mutant.name}: {how}, {time.monotonic() - started:.0f} s", flush=True)
    if not failed and run.returncode not in (0, NOTICED):
        print(run.stdout[-2000:] + run.stderr[-2000:])
    return noticed


def _run(tests: str, mutant: Mutant | None) -> subprocess.CompletedProcess[str]:
    """The tests that every run has, until the first that fails, on the code with the mutant's change or as it is."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-m",
        "not long or alternating",
        "--seed=5",
        f"--timeout={SECONDS}",
    ]
    command += ["-p", "tests.mutants.plugin", "--hypothesis-profile", "mutants", *tests.split()]
    environment = os.environ | {"EPOCHAL_MUTANT": "" if mutant is None else mutant.name}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    sys.exit(main())
