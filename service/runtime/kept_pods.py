"""What the two processes of a control plane say to each other of the pods that it keeps for work: a folder for each.

One process makes the pods, gives each its work, and waits for the answer; the other one is called by them, hands the
work out and takes the answer. They share the data directory and nothing else, and what is there may be lost: whoever
waits for an answer ends with the control plane, and pods end when it does not know them.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from epochal.errors import LauncherUnavailable, NotFound, Unauthenticated
from epochal.service.domain.kubernetes.pod_identity import PodIdentity

log = logging.getLogger("epochal.launcher")

_OWNER_ONLY = 0o700
_POD, _READY, _WORK, _BEGUN, _TAKEN, _ANSWER, _CODE = "pod", "ready", "work", "begun", "taken", "answer", "code"


class KeptPods:
    """``folder``: of both processes, and of no other control plane."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    # Of the process that keeps pods.

    def clear(self, beginning: str) -> None:
        """Nothing that an earlier process kept by names that begin so is known any more."""
        for folder in self._folder.glob(f"{beginning}*"):
            shutil.rmtree(folder, ignore_errors=True)

    def expect(self, name: str) -> None:
        """A pod with this name is about to be made."""
        (self._folder / name).mkdir(mode=_OWNER_ONLY, parents=True)

    def identify(self, name: str, reference: str) -> None:
        """From now on this pod, ``{namespace}/{name}/{uid}``, is answered."""
        _put(self._folder / name / _POD, reference.encode())

    def forget(self, name: str) -> None:
        """Whatever it says from now on, it is not known."""
        shutil.rmtree(self._folder / name, ignore_errors=True)

    def is_ready(self, name: str) -> bool:
        """Whether it has said that it has got ready."""
        return (self._folder / name / _READY).exists()

    def give(self, name: str, work: bytes, code: Mapping[str, Path] = {}) -> None:
        """``code``: what it may fetch, by its sha256. Raises ``OSError``."""
        folder = self._folder / name / _CODE
        folder.mkdir(mode=_OWNER_ONLY, exist_ok=True)
        for sha256, path in code.items():
            _keep(path, folder / sha256)
        _put(self._folder / name / _WORK, work)

    def take_for_driver(self, name: str) -> None:
        """Somebody writes down in this moment which attempt it is for."""
        self._mark(name, _TAKEN)

    def is_taken(self, name: str) -> bool:
        return (self._folder / name / _TAKEN).exists()

    def has_begun(self, name: str) -> bool:
        """Whether it has its work."""
        return (self._folder / name / _BEGUN).exists()

    def answer(self, name: str) -> bytes | None:
        """``None``: there is none yet."""
        try:
            return (self._folder / name / _ANSWER).read_bytes()
        except FileNotFoundError:
            return None

    # Of the process that pods call.

    def check(self, name: str, caller: PodIdentity) -> None:
        """Raises unless ``caller`` is the pod that is kept by this name: ``NotFound`` when there is none (any more),
        ``Unauthenticated`` for another one, ``LauncherUnavailable`` while it is being made."""
        folder = self._folder / name
        try:
            reference = (folder / _POD).read_text()
        except FileNotFoundError:
            if folder.is_dir():
                raise LauncherUnavailable("The pod is not written down yet. Ask again.") from None
            raise NotFound("This control plane keeps no such pod.") from None
        if caller.reference != reference:
            raise Unauthenticated(f"The pod {caller.namespace}/{caller.name} is not the one that is kept.")

    def says_ready(self, name: str) -> None:
        self._mark(name, _READY)

    def work(self, name: str) -> bytes | None:
        """``None``: there is none yet."""
        try:
            work = (self._folder / name / _WORK).read_bytes()
        except FileNotFoundError:
            return None
        self._mark(name, _BEGUN)
        return work

    def code(self, name: str, sha256: str) -> Path:
        """Raises ``NotFound`` unless it is part of the pod's work."""
        path = self._folder / name / _CODE / sha256
        if not path.is_file():
            raise NotFound(f"The work of this pod has no artifact {sha256}.")
        return path

    def draft(self, name: str) -> Path:
        """An empty file to write the answer to, for :meth:`take`. Raises ``NotFound``."""
        try:
            descriptor, path = tempfile.mkstemp(dir=self._folder / name, prefix=".answer-")
        except FileNotFoundError:
            raise NotFound("This control plane keeps no such pod.") from None
        os.close(descriptor)
        return Path(path)

    def take(self, name: str, draft: Path) -> None:
        """The first answer counts. Nothing happens when nobody waits for it any more."""
        with suppress(FileExistsError, FileNotFoundError):
            os.link(draft, self._folder / name / _ANSWER)

    def _mark(self, name: str, mark: str) -> None:
        with suppress(FileNotFoundError):
            (self._folder / name / mark).touch()


def _put(path: Path, content: bytes) -> None:
    """A reader sees all of it or nothing."""
    part = path.with_suffix(".part")
    part.write_bytes(content)
    part.rename(path)


def _keep(path: Path, kept: Path) -> None:
    """The file stays, whatever becomes of the copy that it is of."""
    try:
        os.link(path, kept)
    except OSError:
        shutil.copyfile(path, kept)
