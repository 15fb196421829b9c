"""Counter-based random numbers: the values of event n do not depend on earlier draws."""

from __future__ import annotations

import decimal

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]
Lane = NDArray[np.uint32]

LANES = 8
"""Number of 32-bit values in one block of :func:`draws`."""
SEEDS = 1 << 64


def draws(seed: int, purpose: int, first: int, count: int, blocks: int = 1) -> Lane:
    """Random 32-bit values of items ``first`` to ``first + count - 1``, of shape ``(count, blocks * LANES)``.

    Philox computes each block of 256 bits from the block's number, so an item's values do not depend on the other items
    of the call. numpy guarantees the streams of its bit generators across versions.
    """
    philox = np.random.Philox(key=seed + (purpose << 64), counter=first * blocks)
    words = philox.random_raw(count * blocks * LANES // 2)
    return words.astype("<u8", copy=False).view("<u4").reshape(count, blocks * LANES)


def below(lane: Lane, limit: int | Whole) -> Whole:
    """Whole numbers from 0 to ``limit - 1``, about equally likely; ``limit`` is at most 2^32."""
    return ((lane.astype(np.uint64) * np.asarray(limit, np.uint64)) >> np.uint64(32)).astype(np.int64)


def chance(lane: Lane, share: float) -> NDArray[np.bool_]:
    """True with probability ``share``."""
    return lane.astype(np.uint64) < np.uint64(round(share * (1 << 32)))


def prices(lane: Lane) -> Whole:
    """Prices from 100 to 100 million, distributed equally over the decades: 100 * 10^x, x uniform from 0 to 6."""
    exponent = lane.astype(np.int64) * (6 * _STEPS)
    step = exponent >> 32
    within = (exponent >> 16) & 0xFFFF
    low, high = _POWERS[step % _STEPS], _POWERS[step % _STEPS + 1]
    mantissa = low + ((high - low) * within >> 16)
    found: Whole = (_DECADES[step // _STEPS] * mantissa) >> _FRACTION_BITS
    return found


_STEPS = 1024
_FRACTION_BITS = 24


def _powers_of_ten() -> Whole:
    # Integers, computed with Decimal: exp() of doubles differs in the last bit between processors, and an epoch that is
    # computed again on another machine must have the same rows.
    with decimal.localcontext(decimal.Context(prec=30)):
        step = decimal.Decimal(10) ** (decimal.Decimal(1) / _STEPS)
        powers = [round(step**exponent * (1 << _FRACTION_BITS)) for exponent in range(_STEPS + 1)]
    return np.array(powers, np.int64)


_POWERS = _powers_of_ten()
_DECADES = 100 * 10 ** np.arange(6, dtype=np.int64)
