"""Timers as authors declare them: by defining ``on_timer``. What can be known of their use before any row comes."""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from epochal.declarations.intervals import fixed_interval
from epochal.errors import PipelineError

_EVENT, _PROCESSING = ("timer", "delete_timer"), ("processing_timer", "delete_processing_timer")
NO_EVENT_TIME = "Say with_watermark(..) of its input first, or set it in processing time: ctx.processing_timer(at)."


def checked_hold(process: Any, has_timers: bool, event_time: str | None) -> int:
    """The ``hold`` of a keyed process, in microseconds, and whether it may use the timers that it uses.

    ``has_timers``: whether it defines ``on_timer``; ``event_time``: the column of its input that says when a row
    happened. Raises ``PipelineError`` with the fix.
    """
    used = dict.fromkeys(name for method in (process.process, process.on_timer) for name in _asked_of_context(method))
    if not has_timers:
        for name in used:
            if name in (*_EVENT, *_PROCESSING):
                raise PipelineError(
                    f"{process.__name__} uses ctx.{name}(..) and defines no on_timer(self, key, at, ctx): define it."
                )
    if event_time is None:
        for name in used:
            if name in _EVENT:
                raise PipelineError(
                    f"{process.__name__} uses ctx.{name}(..), and its input has no event time. {NO_EVENT_TIME}"
                )
    hold = fixed_interval(f"{process.__name__}.hold", process.hold, least=0)
    if hold and event_time is None:
        raise PipelineError(
            f"{process.__name__}.hold is {process.hold!r}, and its input has no event time that its output could be "
            "behind: say with_watermark(..) of it first, or remove hold."
        )
    return hold


def _asked_of_context(method: Callable[..., Any]) -> Iterator[str]:
    """The attributes that a method reads of its last argument, as far as its own code shows it."""
    code = getattr(method, "__code__", None)
    if isinstance(code, CodeType) and code.co_argcount == 4:
        yield from _attributes_of(code.co_varnames[3], code)


def _attributes_of(name: str, code: CodeType) -> Iterator[str]:
    loaded = False
    for instruction in dis.get_instructions(code):
        if loaded and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            yield str(instruction.argval)
        found = instruction.argval
        last = found[-1] if isinstance(found, tuple) and found else found
        loaded = instruction.opname.startswith(("LOAD_FAST", "LOAD_DEREF")) and last == name
    for constant in code.co_consts:  # generator expressions and functions inside see the same variable
        if isinstance(constant, CodeType) and name in constant.co_freevars:
            yield from _attributes_of(name, constant)
