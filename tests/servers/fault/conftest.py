"""Fixtures of the tests that kill drivers, for sinks whose servers are real."""

from tests.service.fault.conftest import (
    biography,
    doomed,
    drivers,
    either,
    fork_server,
    local,
    new_application,
    new_either,
    new_local,
    own_jvm,
    settings,
    without_spark,
    zombie_jvm,
)

__all__ = [
    "biography",
    "doomed",
    "drivers",
    "either",
    "fork_server",
    "local",
    "new_application",
    "new_either",
    "new_local",
    "own_jvm",
    "settings",
    "without_spark",
    "zombie_jvm",
]
