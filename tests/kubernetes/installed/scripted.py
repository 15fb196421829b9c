"""``python -m epochal.driver`` in the image ``scripted``: a driver without Spark, many of which fit on a machine.

It fetches its orders like every driver in a pod. It then runs the driver of ``tests/service/availability``, with real
epochs, real files and a journal.
"""

from __future__ import annotations

import os
import sys

from epochal.driver.orders import DriverOrders, ExitCode
from epochal.driver.pod import begin
from epochal.errors import Fenced
from tests.service.availability.driver import FakeDriver


def main() -> int:
    document = begin(sys.argv[-1])
    if isinstance(document, ExitCode):
        return document
    try:
        return FakeDriver(DriverOrders.model_validate_json(document)).run()
    except Fenced as error:
        print(f"fenced: {error}", flush=True)
        return ExitCode.FENCED


if __name__ == "__main__":
    # Exit without cleanup, so that the driver reports nothing more.
    code = main()
    sys.stdout.flush()
    os._exit(code)
