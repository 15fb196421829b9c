"""etcd, API server, controllers and scheduler of Kubernetes as one program, built from source into the user's cache.

``make kubernetes-tools`` runs ``python -m tests.kit.kubernetes.programs``. No package of them exists for all systems.
Go fetches the sources, checked against its checksum database.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from epochal.testing.servers.maven import cache
from epochal.testing.servers.process import ServerUnavailable

VERSION = "1.36.3"
COMMAND = "make kubernetes-tools"
_MODULE = "k8s.io/kubernetes"
_OWN_MODULE = "epochal.invalid/kubernetes"
_VERSION_VARIABLES = "k8s.io/component-base/version"
_SOURCE = Path(__file__).with_name("main.go")
_BUILD = ("go", "build", "-trimpath", "-tags", "notest,grpcnotrace", "-o", "kubernetes")
_FETCH_SECONDS, _BUILD_SECONDS = 1800, 7200


def programs() -> Path:
    """Return the path of the combined program, whose first argument selects the part.

    Raises ``ServerUnavailable``, with the command that builds it, if it was not built on this machine.
    """
    path = _program_path()
    if not path.is_file():
        raise ServerUnavailable(
            f"Kubernetes {VERSION} was not built on this machine: run `{COMMAND}` (6 to 16 minutes; needs Go)."
        )
    return path


def build() -> Path:
    """Build the program unless it exists, completely or not at all, and return its path. Raises
    ``ServerUnavailable``."""
    path = _program_path()
    if path.is_file():
        return path
    if shutil.which("go") is None:
        raise ServerUnavailable("go is not on the PATH: install Go (https://go.dev/dl), which builds Kubernetes.")
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".kubernetes-", dir=path.parent))
    try:
        (draft / "main.go").write_text(_SOURCE.read_text())
        (draft / "go.mod").write_text(_module_file(_fetched(draft)))
        _go(("go", "mod", "tidy"), draft, _FETCH_SECONDS)
        _go((*_BUILD, "-ldflags", _link_flags(), "."), draft, _BUILD_SECONDS)
        (draft / "kubernetes").rename(path)  # a concurrent process that comes second replaces it by the same
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return path


def _program_path() -> Path:
    digest = hashlib.sha256(_SOURCE.read_bytes() + repr((_BUILD, _link_flags())).encode()).hexdigest()[:12]
    return cache() / f"kubernetes-{VERSION}-{digest}" / "kubernetes"


def _link_flags() -> str:
    major, minor, _ = VERSION.split(".")
    variables = {"gitVersion": f"v{VERSION}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return " ".join(["-s", "-w", *(f"-X {_VERSION_VARIABLES}.{name}={value}" for name, value in variables.items())])


def _fetched(draft: Path) -> Path:
    """Return the folder with the source of Kubernetes, in Go's own cache."""
    (draft / "go.mod").write_text(f"module {_OWN_MODULE}\n")
    answer = json.loads(_go(("go", "mod", "download", "-json", f"{_MODULE}@v{VERSION}"), draft, _FETCH_SECONDS))
    return Path(answer["Dir"])


def _module_file(source: Path) -> str:
    """Return the module file. Kubernetes uses its libraries from its checkout; here they are modules of the same
    release."""
    own = (source / "go.mod").read_text()
    release = f"v0.{VERSION.partition('.')[2]}"
    return "\n".join(
        [f"module {_OWN_MODULE}", *_go_version(own), f"require {_MODULE} v{VERSION}", *_staged(own, release)]
    )


def _go_version(own: str) -> Iterator[str]:
    yield from re.findall(r"^go \S+$", own, re.MULTILINE)


def _staged(own: str, release: str) -> Iterator[str]:
    for name in re.findall(r"^\s*(?:replace )?(k8s\.io/\S+) => \./staging", own, re.MULTILINE):
        yield f"replace {name} => {name} {release}"


def _go(command: Sequence[str], folder: Path, seconds: float) -> str:
    flags = f"{os.environ.get('GOFLAGS', '')} -mod=mod".strip()
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": flags, "GOWORK": "off"}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerUnavailable(f"Kubernetes could not be built: {error}.") from error
    if done.returncode != 0:
        raise ServerUnavailable(
            f"Kubernetes could not be built: {' '.join(command[:3])}: {done.stderr.strip()[-1000:]}"
        )
    return done.stdout
