"""Declarations of windows and event time: refusals and descriptions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epochal.declarations.event_time import EventTime, event_time
from epochal.declarations.intervals import DAY, HOUR, MINUTE, Interval, parsed_interval, written_interval
from epochal.declarations.windows import MOST_PANES, cumulative, session, sliding, tumbling
from epochal.errors import PipelineError


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: tumbling("soon"), "tumbling(): size is 'soon', which is not an interval"),
        (lambda: tumbling(""), "not an interval"),
        (lambda: tumbling(3600), "is 3600: use an interval as text"),
        (lambda: tumbling("0 seconds"), "longer than zero"),
        (lambda: tumbling("-1 hour"), "longer than zero"),
        (lambda: tumbling("1 month"), "zone='Europe/Berlin'"),
        (lambda: tumbling("1 year 3 days"), "no fixed length"),
        (lambda: tumbling("1 hour", offset="1 hour"), "offset is '1 hour': it must be shorter than 1 hour"),
        (lambda: tumbling("1 hour", offset="-61 minutes"), "shorter than 1 hour"),
        (lambda: tumbling("1 hour", offset="1 month"), "no fixed length"),
        (lambda: tumbling("1000000 weeks"), "longer than 18,000 years"),
        (lambda: tumbling("1 day", zone="Europe/Berln"), "is not a time zone. Use a name"),
        (lambda: tumbling("1 day", zone="Europe/Berln"), "Did you mean 'Europe/Berlin'?"),
        (lambda: tumbling("1 day", zone="../etc/passwd"), "not a time zone"),
        (lambda: tumbling("1 day", zone=2), "2 is not a time zone"),
        (lambda: tumbling("1 hour", zone="UTC"), "leave the zone out"),
        (lambda: tumbling("1 hour", zone="Asia/Kathmandu"), "leave the zone out and add offset='15 minutes'"),
        (lambda: tumbling("15 minutes", zone="Asia/Kathmandu"), "the same in UTC and in Asia/Kathmandu"),
        (lambda: tumbling("6 hours", zone="Europe/Berlin"), "choose a size that divides one hour, or whole days"),
        (lambda: tumbling("1 day 1 hour", zone="UTC"), "whole days"),
        (lambda: tumbling("1 month 1 day", zone="UTC"), ", not both"),
        (lambda: tumbling("0 days", zone="UTC"), "whole days"),
        (lambda: tumbling("-2 days", zone="UTC"), "longer than zero"),
        (lambda: tumbling("1 month", offset="28 days", zone="UTC"), "shorter than 1 month"),
        (lambda: sliding("1 hour", "2 hours"), "slide '2 hours' is longer than size '1 hour'"),
        (lambda: sliding("1 hour", "0 seconds"), "slide is '0 seconds'"),
        (lambda: sliding("1 hour", "5 minutes", offset="5 minutes"), "shorter than 5 minutes"),
        (lambda: sliding("1 day", "1 minute"), "1,440 panes of 1 minute; the maximum is 1,000"),
        (lambda: sliding("1 hour", "59 minutes 59 seconds"), "3,600 panes of 1 second"),
        (lambda: sliding("1 month", "1 day", zone="UTC"), "1 month and 1 day have no common unit"),
        (lambda: cumulative("1 day", "7 hours"), "step '7 hours' does not divide size '1 day'"),
        (lambda: cumulative("1 hour", "2 hours"), "does not divide"),
        (lambda: cumulative("1 day", "1 second"), "86,400 panes"),
        (lambda: session("0 minutes"), "session(): gap is '0 minutes'"),
        (lambda: session("-1 minute"), "longer than zero"),
        (lambda: session("1 month"), "no fixed length"),
        (lambda: event_time("", "1 minute"), "with_watermark(): the column is ''"),
        (lambda: event_time(None, "1 minute"), "must be the name of a timestamp column"),
        (lambda: event_time("ts", "late"), "with_watermark(): delay is 'late', which is not an interval"),
        (lambda: event_time("ts", "-1 second"), "at least zero"),
        (lambda: event_time("ts", "1 month"), "no fixed length"),
        (lambda: event_time("ts", "4611686018427 seconds"), "delay is '4611686018427 seconds', which is longer than"),
        (lambda: event_time("ts", "1 minute", idle_after="0 seconds"), "idle_after is '0 seconds'"),
        (lambda: event_time("ts", "1 minute", max_ahead="-1 day"), "max_ahead is '-1 day'"),
        (lambda: event_time("ts", "1 minute", on_reject="drop"), "it must be 'count' or 'fail'"),
    ],
)
def test_invalid_declarations_are_refused(declare: Callable[[], object], message: str) -> None:
    with pytest.raises(PipelineError) as raised:
        declare()
    assert message in raised.value.message


def test_declarations_have_descriptions() -> None:
    assert tumbling("60 minutes").details() == tumbling("1 hour").details() == {"kind": "tumbling", "size": "1 hour"}
    assert sliding("1 hour", "5 minutes", offset="1 minute").details() == {
        "kind": "sliding",
        "size": "1 hour",
        "slide": "5 minutes",
        "offset": "1 minute",
    }
    assert cumulative("1 week", "1 day", zone="Europe/Berlin").details() == {
        "kind": "cumulative",
        "size": "7 days",
        "step": "1 day",
        "zone": "Europe/Berlin",
    }
    assert tumbling("1 year", zone="UTC").details()["size"] == "12 months"
    assert session("90 seconds").details() == {"kind": "session", "gap": "90 seconds"}


def test_pane_lengths_are_the_greatest_common_divisor() -> None:
    windows = sliding("10 minutes", "4 minutes")
    assert (windows.panes, windows.every) == (5, 2)
    assert tumbling("1 hour").one_per_row and not windows.one_per_row
    assert sliding("1000 seconds", "1 second").panes == MOST_PANES


def test_event_time_is_stored_in_microseconds() -> None:
    declared = event_time("ts", "10 seconds", idle_after="1 minute", max_ahead="1 day", on_reject="fail")
    assert declared == EventTime("ts", 10_000_000, MINUTE, DAY, "fail")
    assert event_time("ts", "0 seconds") == EventTime("ts", 0, None, None, "count")


def test_intervals_have_months_days_and_microseconds() -> None:
    assert parsed_interval("x", "1 year 2 months 1 week 1 day 1 minute") == Interval(14, 8, MINUTE)
    assert [written_interval(time) for time in (HOUR, 90 * MINUTE, 36 * HOUR, 1, 0, -2 * DAY)] == [
        *("1 hour", "90 minutes", "36 hours", "1 microsecond", "0 seconds", "-2 days")
    ]
