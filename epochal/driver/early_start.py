"""Start of a driver that was not a spare: Spark's JVM starts while Python imports modules and the code is fetched."""

from __future__ import annotations

import logging

from pydantic import ValidationError

from epochal.background.task import BackgroundTask
from epochal.driver.orders import DriverOrders
from epochal.engine.session import launch_jvm

log = logging.getLogger("epochal.driver")


class EarlyStart:
    """Early start of Spark's JVM. ``document``: the orders as received."""

    def __init__(self, document: bytes) -> None:
        self.document = document
        self._task = BackgroundTask("jvm", self._launch)

    def wait_for_jvm(self) -> None:
        """Wait until the JVM has started or failed. After a failure, creating the session starts a JVM and raises."""
        self._task.wait()

    def _launch(self) -> None:
        try:
            orders = DriverOrders.model_validate_json(self.document)
        except ValidationError:
            return  # the driver reports it
        try:
            launch_jvm(orders.application, orders.configuration)
        except Exception as error:  # noqa: BLE001 creating the session raises the error again
            log.warning("Spark's JVM could not be started ahead: %s", error)
