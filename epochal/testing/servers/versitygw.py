"""A private S3 server of a second implementation: versitygw, which stores objects as files.

It is built from source into the user's cache at the first use, which takes up to four minutes, needs Go, and checks the
sources against Go's checksum database. It requires a file system with extended attributes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from epochal.testing.servers.maven import cache
from epochal.testing.servers.process import LOOPBACK, ServerUnavailable, free_port
from epochal.testing.servers.s3 import Credentials, S3Server, running

VERSION = "1.8.0"
MODULE = f"github.com/versity/versitygw/cmd/versitygw@v{VERSION}"
BUILD_SECONDS = 540
"""Within the time limit of a test. Go keeps what it has compiled, and the next attempt continues."""


@contextmanager
def versitygw() -> Iterator[S3Server]:
    """Start an S3 server without data; stop it and remove its data at the end.

    Raises ``ServerUnavailable`` if the program is not in the cache and cannot be built.
    """
    program = _program()
    folder = Path(tempfile.mkdtemp(prefix="epochal-versitygw-"))
    try:
        (folder / "data").mkdir()
        credentials, port = Credentials(), free_port()
        options = ["--port", f"{LOOPBACK}:{port}", "--keep-alive", "--quiet"]
        variables = {"ROOT_ACCESS_KEY": credentials.access_key, "ROOT_SECRET_KEY": credentials.secret_key}
        command: list[str | Path] = [program, *options, "posix", folder / "data"]
        with running(S3Server("versitygw", command, folder, credentials, port, [port], variables)) as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _program() -> Path:
    """Return the path of the program, built completely or not at all. Raises ``ServerUnavailable``."""
    path = cache() / f"versitygw-{VERSION}" / "versitygw"
    if path.is_file():
        return path
    if shutil.which("go") is None:
        raise ServerUnavailable("go is not on the PATH: install Go (https://go.dev/dl), which builds versitygw.")
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".versitygw-", dir=path.parent))
    try:
        _build(draft)
        (draft / "versitygw").rename(path)  # a concurrent process that comes second replaces it by the same
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return path


def _build(folder: Path) -> None:
    environment = {**os.environ, "GOBIN": str(folder), "CGO_ENABLED": "0", "GOWORK": "off"}
    command = ["go", "install", "-trimpath", "-ldflags", "-s -w", MODULE]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerUnavailable(f"versitygw could not be built: {error}.") from error
    if done.returncode != 0:
        raise ServerUnavailable(f"versitygw could not be built: {done.stderr.strip()[-1000:]}")
