"""A sink and a state backend from a third-party package: installation, discovery, contract, use."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from epochal.testing.drivers import DriverPlan, DriverProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which the package was installed, from its sources only."""
    sources = shutil.copytree(HERE / "package", tmp_path_factory.mktemp("sources") / "package")
    target = tmp_path_factory.mktemp("installed")
    options = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", target, sources], check=True, timeout=120
    )
    return target


def python(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": str(installed)},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )


FIND = """
from epochal.contracts.registry import SINKS, STATE_BACKENDS, find, names
print(*names(SINKS), *names(STATE_BACKENDS), find(SINKS, "one-file").__module__)
"""


def test_package_is_found_by_its_entry_points(installed: Path) -> None:
    found = python(installed, "-c", FIND)
    assert {"one-file", "one-file-state", "one_file.sink", "files", "heap"} <= set(found.stdout.split()), found.stderr
    without = subprocess.run([sys.executable, "-c", FIND], capture_output=True, text=True, check=False, timeout=60)
    assert "Unknown sink 'one-file'; installed are: console, dbms, delta, files" in without.stderr


@pytest.mark.long  # tests/spark/contract runs the suites over Epochal's own backends
def test_package_satisfies_the_contract(installed: Path) -> None:
    ran = python(installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "contract_suites.py"))
    assert ran.returncode == 0, ran.stdout[-3000:]
    assert " passed" in ran.stdout


@pytest.mark.long  # the tests above cover discovery and contract
def test_application_uses_the_package(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the driver and in Spark's Python workers. The contract covers crashes."""
    monkeypatch.setenv("PYTHONPATH", str(installed))
    (tmp_path / "input").mkdir()
    for number, words in enumerate((["a", "b", "a"], ["b"], ["a", "c"])):
        (tmp_path / "input" / f"{number}.json").write_text("".join(json.dumps({"word": w}) + "\n" for w in words))
        os.utime(tmp_path / "input" / f"{number}.json", (number, number))
    output = tmp_path / "counts.jsonl"
    plan = DriverPlan(
        pipeline=HERE / "application.py",
        directory=tmp_path / "run",
        parameters={"input": tmp_path / "input", "output": output},
        configuration={
            "parallelism": 2,
            "max_parallelism": 8,
            "state_backend": "one-file-state",
            "epoch_interval_seconds": 0,
            "master": "local[2]",
        },
        epochs=3,
    )
    driver = DriverProcess(plan, tmp_path / "driver.log")
    assert driver.wait() == 0, driver.log_end()
    first, *rows = map(json.loads, output.read_text().splitlines())
    assert first["epoch"] == 3
    assert sorted((row["word"], row["count"]) for row in rows) == [("a", 2), ("a", 3), ("b", 1), ("b", 2), ("c", 1)]
