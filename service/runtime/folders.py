"""Folders of the data directory and their permissions: builders' and drivers' folders are accessible only to their
user."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from epochal.errors import EnvironmentProblem
from epochal.service.domain.settings import Settings
from epochal.service.runtime.isolation import ProcessUser, local_store
from epochal.snapshots import layout
from epochal.snapshots.local_files import make_folder

_OWNER_ONLY = 0o700
_GROUP_ENTERS = 0o710
_GROUP_READS = 0o750
_OF_THE_CATALOG = {(name,) for name in layout.OF_THE_CATALOG}


def prepare_folders(settings: Settings, user: ProcessUser | None) -> None:
    """Create the folders, and adapt those of an earlier start with another user. Raises ``EnvironmentProblem``.

    ================================================  =====================================================
    imports, replicas, hints, logs, pods              only the control plane
    the data directory, work, spares                  ``user`` may traverse, not list
    artifact-cache                                    ``user`` may read
    store, home                                       owned by ``user``
    files of the store outside of branches            only the control plane
    ================================================  =====================================================

    Without ``user``, only the control plane has access to any of them, except for an existing store.
    """
    try:
        _prepare(settings, user)
    except OSError as error:
        raise EnvironmentProblem(f"The data directory {settings.data} cannot be prepared: {error}.") from error


def _prepare(settings: Settings, user: ProcessUser | None) -> None:
    data = settings.data.absolute()
    data.mkdir(parents=True, exist_ok=True, mode=_OWNER_ONLY)
    for name in ("imports", "replicas", "hints", "pods"):
        _folder(data / name, _OWNER_ONLY)
    _folder(settings.logs_directory, _OWNER_ONLY)
    store = local_store(settings)
    if user is None:
        _folder(settings.work_directory, _OWNER_ONLY)
        _folder(settings.spares_directory, _OWNER_ONLY)
        _folder(settings.artifact_cache_directory, _OWNER_ONLY)
        _prepare_store(store)
        return
    _folder(data, _GROUP_ENTERS, user.gid)
    _folder(settings.work_directory, _GROUP_ENTERS, user.gid)
    _folder(settings.spares_directory, _GROUP_ENTERS, user.gid)
    _share_artifacts(settings.artifact_cache_directory, user)
    _folder(settings.home_directory, _OWNER_ONLY)
    os.chown(settings.home_directory, user.uid, user.gid)
    if store is not None:
        _hand_over(store, user)
    _prepare_store(store)


def _folder(path: Path, mode: int, group: int = -1) -> None:
    path.mkdir(exist_ok=True, mode=mode)
    status = path.stat()
    if status.st_uid != os.geteuid():
        return  # A volume, whose permissions are set where it is mounted.
    if group not in (-1, status.st_gid):
        os.chown(path, -1, group)
    if status.st_mode & 0o777 != mode:
        path.chmod(mode)


def _share_artifacts(folder: Path, user: ProcessUser) -> None:
    """Share existing artifacts. New ones inherit group and permissions from this folder."""
    folder.mkdir(exist_ok=True, mode=_OWNER_ONLY)
    if folder.stat().st_gid != user.gid:
        for path in folder.rglob("*"):
            os.chown(path, -1, user.gid)
            path.chmod(_GROUP_READS if path.is_dir() else 0o640)
    _folder(folder, _GROUP_READS, user.gid)


def _hand_over(store: Path, user: ProcessUser) -> None:
    """Give the store's folders to the user: drivers write into them, and control planes, as root, into folders that
    drivers created."""
    make_folder(store)
    if store.stat().st_uid == user.uid:
        return
    # The top folder comes last, so that an interrupted run is repeated.
    for folder, _, _ in os.walk(store, topdown=False):
        if Path(folder).relative_to(store).parts[:1] not in _OF_THE_CATALOG:
            os.chown(folder, user.uid, user.gid, follow_symlinks=False)


def _prepare_store(store: Path | None) -> None:
    """Create the catalog's folders, from which files inherit their owner. A store that is not writable is reported on
    the first write."""
    if store is not None:
        with suppress(OSError):
            make_folder(store)
            for name in sorted(layout.OF_THE_CATALOG):
                _folder(store / name, _OWNER_ONLY)


def take_folder(path: Path, user: ProcessUser) -> None:
    """Create a folder owned by ``user``. The control plane owns its parent, so no other process can have created the
    path."""
    path.mkdir(mode=_OWNER_ONLY)
    os.chown(path, user.uid, user.gid)
