"""A container as a process of this machine, with its own process ids, host name and view of the file system.

The file system is this machine's, below an overlay that receives the container's writes; images do not exist. An image
name determines the program to start (:class:`Image`).
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from epochal.testing.servers.process import ServerUnavailable
from tests.kit.kubernetes.environment import Manifest, expanded

_UNSHARE = ("unshare", "--mount", "--uts", "--pid", "sh", "-c")
# The first process has id 1 in the container. Its exit is reported as Kubernetes does: 128 plus the signal number.
_FIRST = "({}) & wait $!"
_DEVICES = "null zero full random urandom tty"
_TERMINATION_LOG = "/dev/termination-log"
_MESSAGE_BYTES = 4096
# The folders are arguments, so that no part of a manifest is interpreted as script.
_ROOT = f"""
set -e
root=$1 upper=$2 work=$3 hosts=$4
mount -t overlay overlay -o "lowerdir=/,upperdir=$upper,workdir=$work" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount -t tmpfs tmpfs "$root/dev"
for device in {_DEVICES}; do touch "$root/dev/$device"; mount --bind "/dev/$device" "$root/dev/$device"; done
mkdir "$root/dev/shm"; mount -t tmpfs tmpfs "$root/dev/shm"
ln -s /proc/self/fd "$root/dev/fd"; ln -s fd/1 "$root/dev/stdout"; ln -s fd/2 "$root/dev/stderr"
mount -t tmpfs tmpfs "$root/run"; mkdir -p "$root/run/lock"
mount --bind "$hosts" "$root/etc/hosts"
"""
_CHECK = """
set -e
mount -t tmpfs tmpfs /mnt; mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
"""


@dataclass(frozen=True)
class Image:
    """The settings of an image name: the program to start, its arguments, variables and working folder.

    ``places``: folders of this machine that containers see, read-only, even where a volume is mounted above them.
    """

    entrypoint: Sequence[str] = ()
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str = "/"
    places: Sequence[Path] = ()


@dataclass(frozen=True)
class Mount:
    """A mount of ``source``, a folder or file of this machine, at ``path`` in the container."""

    source: Path
    path: str
    read_only: bool = False

    def script(self) -> str:
        # /var/run can be a link to /run, which would lead out of the root.
        target = f'"$root"{shlex.quote(os.path.realpath(self.path))}'
        source = shlex.quote(str(self.source))
        make = f"mkdir -p {target}" if self.source.is_dir() else f"mkdir -p $(dirname {target}); touch {target}"
        read_only = f"; mount -o remount,bind,ro {target}" if self.read_only else ""
        return f"{make}; mount --bind {source} {target}{read_only}\n"


class Container:
    """One start of a container. ``folder``: its own folder on this machine. ``log`` receives its output."""

    def __init__(
        self,
        manifest: Manifest,
        image: Image,
        variables: Mapping[str, str],
        mounts: Sequence[Mount],
        host: str,
        hosts: Path,
        folder: Path,
        log: Path,
    ) -> None:
        """Start the container. Raises ``OSError`` if no process can be started."""
        self.name = str(manifest["name"])
        self._variables = {**image.environment, "HOSTNAME": host, **variables}
        self._variables.setdefault("PATH", os.environ.get("PATH", os.defpath))
        self._message = folder / "termination-log"
        self._folder = str(manifest.get("workingDir") or image.folder)
        places = [folder / name for name in ("root", "upper", "work")]
        for place in places:
            place.mkdir(parents=True)
        self._message.touch()
        message = Mount(self._message, str(manifest.get("terminationMessagePath") or _TERMINATION_LOG))
        own = [Mount(place, str(place), read_only=True) for place in image.places]
        script = _ROOT + "".join(mount.script() for mount in [*mounts, *own, message])
        if (manifest.get("securityContext") or {}).get("readOnlyRootFilesystem"):
            script += 'mount -o remount,ro "$root"\n'
        script += f"hostname {shlex.quote(host[:63])}\nshift 4\n"
        script += f'exec chroot "$root" sh -c \'cd "$0" && exec "$@"\' {shlex.quote(self._folder)} "$@"\n'
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*_UNSHARE, _FIRST.format(script), "sh", *map(str, [*places, hosts]), *self._command(manifest, image)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._variables,
                start_new_session=True,
            )
        self.killed_for_memory = False

    def _command(self, manifest: Manifest, image: Image) -> list[str]:
        own = manifest.get("command")
        program = own or image.entrypoint
        arguments = manifest.get("args") or (() if own else image.arguments)
        return [expanded(word, self._variables) for word in (*program, *arguments)]

    @property
    def exit_code(self) -> int | None:
        """The exit code as in Kubernetes: 128 plus the number of a signal; ``None`` while the container runs."""
        code = self._process.poll()
        return None if code is None else 128 - code if code < 0 else code

    @property
    def message(self) -> str:
        """The termination message that the container has written."""
        return self._message.read_bytes()[-_MESSAGE_BYTES:].decode(errors="replace")

    def wait(self, seconds: float) -> bool:
        """Wait for at most ``seconds``. Returns whether the container has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.poll() is not None

    def terminate(self) -> None:
        """Send SIGTERM to the first process, which receives it only with a handler, as in any container."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the first process; all processes of the container end with it."""
        self._signal(signal.SIGKILL)

    def run(self, command: Sequence[str], seconds: float) -> int | None:
        """Run another process in the container. Returns its exit code, or ``None`` after a timeout or if the container
        has ended."""
        first = self._first()
        if first is None:
            return None
        entered = ["nsenter", "--target", str(first), "--mount", "--uts", "--pid", "--root", "--wd=/", "--"]
        try:
            return subprocess.run(
                [*entered, *command],
                env=self._variables,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=seconds,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            return None

    def _signal(self, number: signal.Signals) -> None:
        first = self._first()
        with contextlib.suppress(ProcessLookupError):
            if first is not None:
                os.kill(first, number)
            elif number is signal.SIGKILL and self._process.poll() is None:
                self._process.kill()  # no first process yet; the started processes end with it

    def _first(self) -> int | None:
        """Return the outer process id of the container's process 1."""
        parent = self._process.pid
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
            if self._process.poll() is None and children:
                return int(children[0])
        return None


def check_containers() -> None:
    """Check that containers can run. Raises ``ServerUnavailable`` if this user or this machine cannot run them."""
    try:
        done = subprocess.run(
            [*_UNSHARE, _FIRST.format(_CHECK)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerUnavailable(f"Pods need `unshare`: {error}.") from error
    if done.returncode != 0:
        raise ServerUnavailable(
            f"Pods need root, namespaces and overlays, which this machine does not allow: {done.stderr.strip()[:300]}"
        )
