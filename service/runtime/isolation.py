"""The operating-system user of builders and drivers. A control plane that runs as root uses another user, which cannot
read its secrets.

Builders and drivers run an author's code. Under the control plane's own user that code could read the admin token, the
catalog and, in ``/proc``, the control plane's environment. All of them run under *one* other user, so they can read one
another's environment and files.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from epochal.errors import EnvironmentProblem, OptionError
from epochal.service.domain.settings import IN_PODS, Settings
from epochal.snapshots.store import SnapshotStore

DEFAULT_USERS = ("epochal", "nobody")
"""The first of these that exists is the default. Spark does not start under a user id without a name."""

_ROOT = 0
_PACKAGES = ("epochal", "pyspark")
_PROBE = """
import importlib.util, os, sys
closed = [name for name in sys.argv[1].split() if importlib.util.find_spec(name) is None]
closed += [path for path in sys.argv[2:] if not os.access(path, os.X_OK)]
sys.exit(closed[0] if closed else 0)
"""
_PROBE_SECONDS = 60


@dataclass(frozen=True)
class ProcessUser:
    """A user of this machine that runs processes. ``groups``: the supplementary ones."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()

    def environment(self, environment: Mapping[str, str], home: Path) -> dict[str, str]:
        """``environment`` adapted to this user. A ``TMPDIR`` that is not world-writable is removed."""
        own = {**environment, "HOME": str(home), "USER": self.name, "LOGNAME": self.name}
        if "TMPDIR" in own and not _world_writable(Path(own["TMPDIR"])):
            del own["TMPDIR"]
        return own


@dataclass(frozen=True)
class Isolation:
    """``user``: the user that runs authors' code; ``None``: the control plane's own user, for this ``reason``."""

    user: ProcessUser | None
    reason: str = ""

    def warning(self, settings: Settings) -> str | None:
        """A warning that lists the control plane's data that authors' code can read; ``None`` if there is none."""
        if self.user is not None or settings.launcher == IN_PODS:
            return None
        secrets = [f"the admin token ({settings.token_file})"] if settings.authentication else []
        if settings.database_url.startswith("sqlite"):
            secrets.append("the catalog")
        secrets += ["bundles, logs and artifacts", "other applications' state and EPOCHAL_SECRET_* variables"]
        if os.geteuid() == _ROOT:
            secrets.append("this process's environment and memory, and everything else on this machine")
        return (
            f"Pipelines run under this control plane's own user ({_name(os.geteuid())}), since {self.reason}. Their "
            f"code can read {', '.join(secrets)}: give the role author only to users with a right to all of that "
            "(docs/operations/running.md, Security)."
        )


class Identity(TypedDict):
    """Arguments of :class:`subprocess.Popen`."""

    user: int | None
    group: int | None
    extra_groups: Sequence[int] | None


def identity_of(user: ProcessUser | None) -> Identity:
    """The arguments that start a process as ``user``."""
    if user is None:
        return {"user": None, "group": None, "extra_groups": None}
    return {"user": user.uid, "group": user.gid, "extra_groups": user.groups}


def isolation_of(settings: Settings) -> Isolation:
    """Determine the user that runs authors' code.

    Raises ``OptionError`` and ``EnvironmentProblem`` if ``driver_user`` names a user that cannot.
    """
    own = os.geteuid()
    if settings.driver_user is None:
        return _default(settings) if own == _ROOT else Isolation(None, "only root can start processes of another user")
    if settings.driver_user in (str(own), _name(own)):
        return Isolation(None, "it is the configured user of drivers (--driver-user, EPOCHAL_DRIVER_USER)")
    user = find_user(settings.driver_user)
    if user is None:
        raise OptionError(
            f"There is no user {settings.driver_user!r} on this machine. Spark needs one that has a name."
        )
    if own != _ROOT:
        raise OptionError(f"Only root can start drivers as {user.name}; this control plane is {_name(own)}.")
    if (obstacle := _obstacle(settings, user)) is not None:
        raise EnvironmentProblem(f"Drivers cannot run as {user.name}: {obstacle}.")
    return Isolation(user)


def _default(settings: Settings) -> Isolation:
    user = next((found for name in DEFAULT_USERS if (found := find_user(name)) is not None), None)
    if user is None:
        return Isolation(None, f"there is no user {' or '.join(DEFAULT_USERS)} on this machine")
    obstacle = _obstacle(settings, user)
    return Isolation(user) if obstacle is None else Isolation(None, obstacle)


def find_user(name_or_number: str) -> ProcessUser | None:
    """Find a user by name or number; ``None`` if the machine has no such user."""
    try:
        by_number = name_or_number.isdecimal()
        row = pwd.getpwuid(int(name_or_number)) if by_number else pwd.getpwnam(name_or_number)
    except (KeyError, OverflowError):
        return None
    # Never root's group: it grants access to files that root shares with administrators.
    groups = {group for group in os.getgrouplist(row.pw_name, row.pw_gid) if group not in (_ROOT, row.pw_gid)}
    return ProcessUser(row.pw_name, row.pw_uid, row.pw_gid, tuple(sorted(groups)))


def _obstacle(settings: Settings, user: ProcessUser) -> str | None:
    """The reason why the user cannot run drivers here, determined with a process of that user; ``None`` if it can."""
    needed = [_existing(settings.data.absolute().parent), *_java()]
    if (store := local_store(settings)) is not None and not store.is_relative_to(settings.data.absolute()):
        needed.append(_existing(store))
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE, " ".join(_PACKAGES), *map(str, needed)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd="/",
            env={"PATH": os.environ.get("PATH", os.defpath)},
            **identity_of(user),
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except PermissionError:
        return _closed_to(user, sys.executable)
    except (OSError, subprocess.SubprocessError) as error:
        return f"a process of {user.name} cannot be started ({error})"
    if done.returncode == 0:
        return None
    what = (done.stderr.strip().splitlines() or ["nothing"])[-1]
    if what in _PACKAGES:
        spec = importlib.util.find_spec(what)
        return _closed_to(user, what if spec is None or spec.origin is None else spec.origin)
    return _closed_to(user, what) if what.startswith("/") else f"{sys.executable} does not run as {user.name} ({what})"


def _closed_to(user: ProcessUser, path: str) -> str:
    whole = Path(os.path.realpath(path)) if path.startswith("/") else Path(path)
    folders = [folder for folder in reversed(whole.parents) if folder.is_dir() and not _may_enter(user, folder)]
    where = f"{folders[0]} is closed to that user" if folders else "it may not be read"
    return f"user {user.name!r} cannot use {path} ({where})"


def _may_enter(user: ProcessUser, folder: Path) -> bool:
    status = folder.stat()
    if status.st_uid == user.uid:
        return bool(status.st_mode & 0o100)
    return bool(status.st_mode & (0o010 if status.st_gid in (user.gid, *user.groups) else 0o001))


def local_store(settings: Settings) -> Path | None:
    """The store's folder, if the store is local to this machine."""
    store = SnapshotStore(settings.store_url)
    return Path(store.url) if store.is_near else None


def _java() -> list[Path]:
    home = os.environ.get("JAVA_HOME")
    found = f"{home}/bin/java" if home else shutil.which("java")
    return [] if found is None else [Path(found)]


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _world_writable(folder: Path) -> bool:
    return folder.is_dir() and bool(folder.stat().st_mode & 0o002)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
