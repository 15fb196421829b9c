"""``python -m epochal.driver`` in the image ``scripted``: a driver's pod without Spark, many of which fit on a machine.

It fetches its orders as every driver in a pod does, and is then the driver of ``tests/service/availability``: real
epochs, real files, and a journal.
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
    # No orderly end: what a driver has not said by now it never says.
    code = main()
    sys.stdout.flush()
    os._exit(code)
