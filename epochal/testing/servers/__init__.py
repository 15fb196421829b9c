"""Real servers for tests and demos, started by the tests themselves from packages that the development set installs.

Each module starts one kind of server on free loopback ports, waits until it answers, and stops exactly the processes
that it started. A server that cannot be had raises :class:`ServerUnavailable`: a test suite turns that into a skip with
the reason.
"""

from epochal.testing.servers.process import ServerUnavailable

__all__ = ["ServerUnavailable"]
