"""Child processes of a driver: a Python module that receives objects from its parent and ends with it.

Objects travel through the standard input of the child, never on its command line, and only from parent to child. The
child's answers are bytes, whose format is the caller's.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, Any

from epochal.background.task import BackgroundTask


class ChildProcess:
    """A process that runs the function ``main`` of a module, with the parent's environment and module path."""

    def __init__(self, module: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"import sys; from {module} import main; sys.exit(main())"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    @property
    def answers(self) -> IO[bytes]:
        """Output of the child; it ends when the child ends."""
        assert self._process.stdout is not None
        return self._process.stdout

    def send(self, message: Any) -> None:
        """Send one object. Has no effect if the child has ended: its answers then end, too."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            pickle.dump(message, self._process.stdin)
            self._process.stdin.flush()

    def wait(self) -> int:
        """Wait until the child has ended. Returns its exit code."""
        return self._process.wait()

    def end(self) -> None:
        """Kill the child, whatever it does, and release its pipes."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self.answers.close()


def messages_of_parent() -> Iterator[Any]:
    """In the child: yield the objects that the parent sends. The process exits when the parent has ended, also while an
    object is being processed.

    Signals that a terminal or a supervisor sends to the whole group are left to the parent.
    """
    for ignored in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    received: queue.SimpleQueue[Any] = queue.SimpleQueue()
    # Not sys.stdin, whose lock Python takes at its end, although the thread is still reading.
    stream = os.fdopen(os.dup(sys.stdin.fileno()), "rb")

    def receive() -> None:
        try:
            while True:
                received.put(pickle.load(stream))
        except EOFError:
            pass
        except BaseException:  # noqa: BLE001  the process ends: it cannot receive anything further
            traceback.print_exc()
        finally:
            os._exit(1)

    BackgroundTask("parent", receive)
    while True:
        yield received.get()


def answers_to_parent() -> IO[bytes]:
    """In the child: return the stream of its answers. Other output goes to standard error from now on."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers
