"""Real servers for tests and demos, started from packages of the development dependencies.

Each module starts one kind of server on free loopback ports, waits until it answers, and stops exactly the processes
that it started. An unavailable server raises :class:`ServerUnavailable`; a test suite turns the error into a skip with
its reason.
"""

from epochal.testing.servers.process import ServerUnavailable

__all__ = ["ServerUnavailable"]
