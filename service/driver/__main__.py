"""``python -m epochal.service.driver``."""

from __future__ import annotations

import sys

from epochal.service.driver.main import main

if __name__ == "__main__":
    sys.exit(main())
