"""``python -m epochal.driver``."""

from __future__ import annotations

import sys

from epochal.driver.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
