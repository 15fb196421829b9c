"""``python -m epochal.driver``."""

from __future__ import annotations

import sys

from epochal.driver.orders import SPARE


def _main() -> int:
    beginning = None
    if sys.argv[1:2] != [SPARE]:
        from epochal.driver.beginning import Beginning

        beginning = Beginning(sys.stdin.buffer.read())
    # Not before: it is what takes as long to import as a JVM to start.
    from epochal.driver.main import main

    return main(sys.argv[1:], beginning)


if __name__ == "__main__":
    sys.exit(_main())
