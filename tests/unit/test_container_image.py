"""The Dockerfile keeps the promises of helm/README.md; building the image would need a container runtime."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tools import audit
from tools.unneeded_packages import needed, unneeded

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "helm" / "Dockerfile").read_text()


def instructions() -> list[tuple[str, str]]:
    """Pairs of instruction and arguments, with continued lines joined."""
    lines = [line for line in DOCKERFILE.splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in joined.splitlines()]


def stages() -> list[list[tuple[str, str]]]:
    found: list[list[tuple[str, str]]] = []
    for word, rest in instructions():
        if word == "FROM":
            found.append([])
        if found:
            found[-1].append((word, rest))
    return found


def test_build_tools_are_not_in_the_final_image() -> None:
    build, final = stages()
    assert [stage[0][1].partition(" ")[0] for stage in (build, final)] == ["${BASE}", "${BASE}"]
    copied = [rest for word, rest in final if word == "COPY"]
    assert copied == ["--from=build /opt/epochal /opt/epochal", "--chmod=0755 helm/java /usr/local/bin/java"]
    assert not any("pip" in rest for word, rest in final if word == "RUN")


def test_python_packages_come_from_the_lock_file() -> None:
    installs = [part for word, rest in stages()[0] if word == "RUN" for part in re.findall(r"pip install [^&]*", rest)]
    locked, own = installs
    assert "--require-hashes" in locked and locked.split()[-2:] == ["-r", "requirements.lock"]
    assert "--no-index" in own and "--no-deps" in own, "only the lock file may use an index"


def test_the_image_runs_as_any_user_and_not_as_root() -> None:
    final = stages()[1]
    users = [rest for word, rest in final if word == "USER"]
    assert users == ["10001"] and final.index(("USER", "10001")) > max(
        number for number, (word, _) in enumerate(final) if word == "RUN"
    )
    accounts = " ".join(rest for word, rest in final if word == "RUN" and "useradd" in rest)
    assert "--uid 10001 --gid 0" in accounts and "--group=0 --mode=0775 /data" in accounts


def test_an_init_process_handles_signals_and_children() -> None:
    final = dict(stages()[1])
    assert final["ENTRYPOINT"] == '["tini", "-g", "--", "epochal"]'
    packages = next(rest for word, rest in stages()[1] if word == "RUN" and "apt-get" in rest)
    for package in ("tini", "procps", "libnss-wrapper", "openjdk-17-jre-headless"):
        assert f" {package} " in packages


def test_copied_files_exist() -> None:
    for word, rest in stages()[0] + stages()[1]:
        if word == "COPY" and "--from=" not in rest:
            *sources, _ = [part for part in rest.split() if not part.startswith("--")]
            assert [source for source in sources if not (ROOT / source).exists()] == []


def test_only_development_packages_are_removed() -> None:
    retained, removed = needed("epochal[postgresql]"), set(unneeded("epochal[postgresql]"))
    assert {"pyspark", "py4j", "fastapi", "starlette", "psycopg", "psycopg-binary", "pydantic-core"} <= retained
    assert {"pytest", "mypy", "hypothesis", "scikit-learn"} <= removed
    assert retained.isdisjoint(removed) and "psycopg" not in needed("epochal")


@pytest.fixture
def java(tmp_path: Path) -> Path:
    """The java script of the image, with a Java that prints its arguments, LD_PRELOAD and its account."""
    real = tmp_path / "java"
    real.write_text(
        '#!/bin/sh\necho "$@"\necho "$LD_PRELOAD"\n'
        'if [ -n "$NSS_WRAPPER_PASSWD" ]; then cat "$NSS_WRAPPER_PASSWD"; fi\n'
    )
    script = tmp_path / "script"
    script.write_text((ROOT / "helm" / "java").read_text().replace("/usr/bin/java", str(real)))
    for file in (real, script):
        file.chmod(0o755)
    tmp_path.chmod(0o755)
    for folder in tmp_path.parents:
        if folder.stat().st_uid == os.getuid() and folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o011)
    return script


def test_java_runs_unchanged_for_a_named_user(java: Path) -> None:
    result = subprocess.run(
        [java, "-version", "two words"], capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"}
    )
    assert result.stdout.splitlines() == ["-version two words", ""]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can run a program as a user without a name")
def test_java_gets_an_account_for_a_user_without_a_name(java: Path) -> None:
    """The library is missing on this machine; the loader only prints a warning."""
    result = subprocess.run(
        [java, "-version"],
        capture_output=True,
        text=True,
        check=True,
        user=1_000_640_000,
        group=0,
        env={"PATH": "/usr/bin:/bin", "HOME": "/tmp", "TMPDIR": "/tmp"},
        cwd="/",
    )
    arguments, preloaded, account = result.stdout.splitlines()
    assert (arguments, preloaded) == ("-version", "libnss_wrapper.so")
    assert account == "epochal:x:1000640000:0::/tmp:/bin/sh"


def _audited(tmp_path: Path, answer: str, code: int = 0) -> tuple[int, str]:
    """The report on the output of a stand-in for pip-audit, which checks its arguments."""
    program = tmp_path / "pip-audit"
    program.write_text(
        "#!/bin/sh\n"
        'case "$*" in *--require-hashes*"--vulnerability-service osv --requirement a.lock --requirement b.lock") ;;\n'
        '*) echo "unexpected: $*" >&2; exit 9 ;; esac\n'
        f"cat <<'END'\n{answer}\nEND\necho 'no connection' >&2\nexit {code}\n"
    )
    program.chmod(0o755)
    return audit.report(str(program), ["a.lock", "b.lock"], "osv")


def test_an_audit_fails_for_packages_that_were_not_checked(tmp_path: Path) -> None:
    good = {"name": "idna", "version": "3.20", "vulns": []}
    found = {"id": "PYSEC-1", "aliases": ["CVE-2024-3651"], "fix_versions": ["3.7"]}
    bad = {"name": "idna", "version": "3.6", "vulns": [found]}
    skipped = {"name": "h11", "skip_reason": "Dependency not found on PyPI and could not be audited: h11 (0.16.0)"}

    def report(*packages: object, code: int = 0) -> tuple[int, str]:
        return _audited(tmp_path, json.dumps({"dependencies": packages, "fixes": []}), code)

    assert report(good) == (0, "1 of 1 packages checked, 0 known vulnerabilities.")
    code, text = report(good, bad, code=1)
    assert code == audit.FOUND and text.splitlines()[0] == "idna 3.6: PYSEC-1, CVE-2024-3651; fixed in 3.7"
    code, text = report(good, skipped)
    assert code == audit.UNKNOWN and "1 of 2 packages checked" in text and "did not answer for 1 packages (h11)" in text
    assert report(bad, skipped, code=1)[0] == audit.FOUND
    assert report()[0] == audit.UNKNOWN
    code, text = _audited(tmp_path, "", 1)
    assert code == audit.UNKNOWN and "could not be run against the database 'osv': no connection" in text
