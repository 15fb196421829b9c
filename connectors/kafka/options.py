"""Options of the Kafka source: topics and start position."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

from epochal.connectors.kafka.cluster import Selection
from epochal.errors import OptionError
from epochal.pipeline.definitions import check_choice

Start = Literal["earliest", "latest"] | datetime | Mapping[str, Mapping[int, int]]


def selection(what: str, topics: str | Sequence[str] | None, pattern: str | None) -> Selection:
    """Check the options for topics, by name or by pattern. Raises ``OptionError``."""
    names = (topics,) if isinstance(topics, str) else tuple(topics or ())
    if bool(names) == (pattern is not None):
        raise OptionError(f"{what} requires either topics or a pattern of their names.")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise OptionError(f"{what}: the pattern {pattern!r} is not a regular expression: {error}.") from None
    if len(set(names)) < len(names):
        raise OptionError(f"{what}: a topic is named twice in {', '.join(names)}.")
    return Selection(names, pattern)


def start_position(what: str, start: Start) -> Start:
    """Check the start position. Raises ``OptionError``."""
    if isinstance(start, str):
        check_choice(what, "start", start, ("earliest", "latest"))
        return start
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise OptionError(f"{what}: start is {start}, without a time zone: datetime(.., tzinfo=UTC).")
        return start
    for topic, offsets in start.items():
        for partition, offset in offsets.items():
            if type(partition) is not int or type(offset) is not int or partition < 0 or offset < 0:
                raise OptionError(
                    f"{what}: start of topic {topic!r} is {dict(offsets)!r}: write {{partition: offset}}."
                )
    return {topic: dict(offsets) for topic, offsets in start.items()}
