"""``python -m tests.kit.kubernetes.programs``: the command of ``make kubernetes-tools``."""

from __future__ import annotations

import sys

from epochal.testing.servers.process import ServerUnavailable
from tests.kit.kubernetes.programs import VERSION, build


def _main() -> int:
    print(f"Building Kubernetes {VERSION} for tests, once: about 11 minutes of processor time", flush=True)
    try:
        print(build())
    except ServerUnavailable as unavailable:
        print(unavailable.message, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
