"""Checkout of another commit: a work tree and an environment that runs its code with the same libraries."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.comparison.history import HISTORY
from epochal.errors import EnvironmentProblem

ROOT = Path(__file__).parents[2]
BENCHMARKS = "benchmarks"
LOCK = "requirements.lock"


@dataclass(frozen=True)
class Checkout:
    """``python`` imports Epochal from ``folder``. ``commit``: full hash; ``changed``: with uncommitted changes."""

    folder: Path
    python: Path
    commit: str
    changed: bool = False

    @property
    def name(self) -> str:
        return self.commit[:10] + (" with changes" if self.changed else "")


def this_checkout(root: Path = ROOT) -> Checkout:
    """This checkout. Uncommitted results in the history do not count as changes."""
    changes = _git(root, "status", "--porcelain", "--", ".", f":!{HISTORY.relative_to(ROOT)}")
    return Checkout(root, Path(sys.executable), commit_of("HEAD", root), bool(changes))


def commit_name() -> str:
    """Name of this checkout for people; ``unknown`` without a Git repository or without Git."""
    try:
        return this_checkout().name
    except (EnvironmentProblem, OSError):
        return "unknown"


def commit_of(reference: str, root: Path = ROOT) -> str:
    """Full hash of a commit. Raises ``EnvironmentProblem`` if it does not exist."""
    arguments = ("rev-parse", "--verify", "--quiet", f"{reference}^{{commit}}")
    return _git(root, *arguments, otherwise=f"There is no commit {reference!r}.")


@contextmanager
def other_checkout(reference: str, root: Path = ROOT, *, own_benchmarks: bool = False) -> Iterator[Checkout]:
    """Check the commit out into a temporary folder, with the benchmarks of ``root`` to measure both commits alike.

    ``own_benchmarks``: the commit keeps its benchmarks, which must measure the same quantities.

    Raises ``EnvironmentProblem``.
    """
    commit = commit_of(reference, root)
    parent = Path(tempfile.mkdtemp(prefix="epochal-compare-"))
    folder = parent / "checkout"
    try:
        _git(root, "worktree", "add", "--quiet", "--detach", str(folder), commit)
        if not own_benchmarks:
            shutil.rmtree(folder / BENCHMARKS, ignore_errors=True)
            shutil.copytree(root / BENCHMARKS, folder / BENCHMARKS, ignore=shutil.ignore_patterns("__pycache__"))
        yield Checkout(folder, _environment(folder), commit)
    finally:
        shutil.rmtree(parent, ignore_errors=True)
        _git(root, "worktree", "prune")


def same_libraries(one: Checkout, other: Checkout) -> bool:
    return (one.folder / LOCK).read_bytes() == (other.folder / LOCK).read_bytes()


def _environment(folder: Path) -> Path:
    """Create an environment with the libraries of this one and Epochal from ``folder``. Returns its Python.

    It does not read the path files of this environment's packages, so that this environment's Epochal is not found.
    """
    environment = folder / ".venv"
    _run(sys.executable, "-m", "venv", "--without-pip", str(environment))
    python = environment / "bin" / "python"
    packages = Path(_run(str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"))
    (packages / "libraries.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    if (archive := Path(sys.prefix) / "var").is_dir():
        (environment / "var").symlink_to(archive)  # class archive of Spark
    install = ("install", "--quiet", "--no-deps", "--no-build-isolation", "--editable", str(folder))
    _run(sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python), *install)
    found = _run(str(python), "-c", "import epochal; print(epochal.__file__)")
    if not Path(found).is_relative_to(folder.resolve()):
        raise EnvironmentProblem(f"The environment in {folder} has Epochal from {found}.")
    return python


def _git(root: Path, *arguments: str, otherwise: str | None = None) -> str:
    return _run("git", "-C", str(root), *arguments, otherwise=otherwise)


def _run(*command: str, otherwise: str | None = None) -> str:
    """Raises ``EnvironmentProblem`` with ``otherwise`` or the output of the command."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    if done.returncode:
        raise EnvironmentProblem(otherwise or f"{' '.join(command[:4])} .. failed:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()
