"""``python -m tests.mutants``: every deliberately wrong protocol has to be noticed by the tests."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from tests.mutants.mutants import MUTANTS, Mutant

NOTICED = 1


def main() -> int:
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    chosen = [mutant for mutant in MUTANTS if wanted in mutant.name]
    missed = [mutant for mutant in chosen if not _noticed(mutant)]
    print(f"\n{len(chosen) - len(missed)} of {len(chosen)} mutants were caught.")
    return 1 if missed else 0


def _noticed(mutant: Mutant) -> bool:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--timeout=120", "-p", "tests.mutants.plugin"]
    command += ["--hypothesis-profile", "mutants"]
    started = time.monotonic()
    run = subprocess.run(
        [*command, mutant.tests], env=os.environ | {"EPOCHAL_MUTANT": mutant.name}, capture_output=True, text=True
    )
    failed = [line for line in run.stdout.splitlines() if line.startswith("FAILED")]
    how = f"caught by {failed[0].split()[1]}" if failed else f"NOT caught (pytest ended with {run.returncode})"
    print(f"{'ok ' if failed else '!! '} {mutant.name}: {how}, {time.monotonic() - started:.0f} s", flush=True)
    if not failed and run.returncode not in (0, NOTICED):
        print(run.stdout[-2000:] + run.stderr[-2000:])
    return run.returncode == NOTICED and bool(failed)


if __name__ == "__main__":
    sys.exit(main())
