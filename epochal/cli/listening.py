"""The socket of ``up``, taken before anything that takes long is imported or started."""

from __future__ import annotations

import errno
import socket

from epochal.errors import EnvironmentProblem, OptionError


def listen(host: str, port: int, prefix: str = "--") -> socket.socket:
    """A listening socket. ``prefix``: what the options ``host`` and ``port`` begin with. Raises ``EnvironmentProblem``,
    ``OptionError``."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise OptionError(f"{host!r} is not an address of this machine; choose another {prefix}host.") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise EnvironmentProblem(_why(error, host, port, prefix)) from error
    return listener


def _why(error: OSError, host: str, port: int, prefix: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"Port {port} of {host} is in use, perhaps by another control plane; stop it, or choose another "
            f"{prefix}port."
        )
    if error.errno == errno.EACCES:
        return f"Port {port} needs more rights than this user has; choose a {prefix}port above 1023."
    return f"Cannot listen on {host}, port {port}: {error.strerror}; choose another {prefix}host or {prefix}port."
