"""``python -m epochal.driver``."""

from __future__ import annotations

import sys

from epochal.driver.orders import FETCH, SPARE, SPARE_POD, ExitCode


def _main() -> int:
    early_start = None
    document: bytes | ExitCode
    if sys.argv[1:2] not in ([SPARE], [SPARE_POD]):
        from epochal.driver.early_start import EarlyStart

        if sys.argv[1:2] == [FETCH]:
            from epochal.driver.pod import begin

            document = begin(sys.argv[-1])
            if isinstance(document, ExitCode):
                return document
        else:
            document = sys.stdin.buffer.read()
        early_start = EarlyStart(document)
    # Import late: the import takes as long as the start of a JVM.
    from epochal.driver.main import main

    return main(sys.argv[1:], early_start)


if __name__ == "__main__":
    sys.exit(_main())
