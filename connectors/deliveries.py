"""``delivery``, the same option for all sinks: what a sink can do, and what its author has chosen of it."""

from __future__ import annotations

from typing import get_args

from epochal.contracts.configuration import Delivery
from epochal.errors import OptionError
from epochal.pipeline.definitions import check_choice

EXACTLY_ONCE: tuple[Delivery, ...] = ("exactly_once",)


def check_delivery(what: str, delivery: Delivery | None, can: tuple[Delivery, ...], why: str) -> None:
    """``what`` is the connector, ``why`` the reason for which it cannot do the others. Raises ``OptionError``."""
    if delivery is None:
        return
    check_choice(what, "delivery", delivery, get_args(Delivery))
    if delivery not in can:
        raise OptionError(f"{what} cannot deliver {delivery}: {why}. It can do {', '.join(can)}.")


def described_delivery(delivery: Delivery | None) -> dict[str, str]:
    """What a sink's description says of it."""
    return {} if delivery is None else {"delivery": delivery}
