"""The temporary folder of epochs is deleted while tasks of an aborted epoch still write into it."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from epochal.engine import session
from epochal.engine.session import temporary_folder


class Writer(threading.Thread):
    """A task that creates directories with a file each until it is stopped or its folder is deleted."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self._folder, self._ended = folder, threading.Event()
        self.begun = threading.Event()

    def run(self) -> None:
        number = 0
        with suppress(FileNotFoundError):
            while not self._ended.is_set():
                (self._folder / str(number)).mkdir()
                (self._folder / str(number) / "file").touch()
                self.begun.set()
                number += 1

    def end(self) -> None:
        self._ended.set()
        self.join()


def test_the_folder_is_deleted_when_its_last_writer_has_stopped() -> None:
    with temporary_folder("test") as folder:
        writer = Writer(folder)
        writer.start()
        assert writer.begun.wait(10)
        threading.Timer(0.3, writer.end).start()
    writer.join(10)
    assert not folder.exists()


def test_a_folder_that_cannot_be_deleted_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(session, "REMOVAL_SECONDS", 0.1)
    monkeypatch.setattr(session.shutil, "rmtree", lambda folder, ignore_errors: None)
    with caplog.at_level(logging.WARNING), temporary_folder("test") as folder:
        pass
    folder.rmdir()
    assert str(folder) in caplog.text
