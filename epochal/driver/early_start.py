"""The first moments of a driver that was no spare: Spark's JVM starts while Python imports and the code is fetched."""

from __future__ import annotations

import logging

from pydantic import ValidationError

from epochal.background.task import BackgroundTask
from epochal.driver.orders import DriverOrders
from epochal.engine.session import launch_jvm

log = logging.getLogger("epochal.driver")


class Beginning:
    """``document``: the orders, as they came."""

    def __init__(self, document: bytes) -> None:
        self.document = document
        self._task = BackgroundTask("jvm", self._launch)

    def wait_for_jvm(self) -> None:
        """It is there then, or whoever needs it starts one and hears why there is none."""
        self._task.wait()

    def _launch(self) -> None:
        try:
            orders = DriverOrders.model_validate_json(self.document)
        except ValidationError:
            return  # the driver says so
        try:
            launch_jvm(orders.application, orders.configuration)
        except Exception as error:  # noqa: BLE001 whatever it is, it comes again where it is waited for
            log.warning("Spark's JVM could not be started ahead: %s", error)
