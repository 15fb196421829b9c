"""Authors' processes that imitate drivers by their commands, names and claim files."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from epochal.driver.orders import SPARE
from epochal.service.domain.executions import DriverName
from epochal.service.runtime.launchers.local import LocalLauncher
from epochal.service.runtime.launchers.processes import LocalProcess
from epochal.service.runtime.launchers.spare_process import claimed_name
from tests.kit.launching import orders_of
from tests.kit.waiting import eventually

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux has /proc")


HOSTILE = """
import ctypes, sys, time
from pathlib import Path
libc, how = ctypes.CDLL(None), sys.stdin.readline().strip()
if how == "name":
    libc.prctl(15, b"\\xff)\\n\\xfe (", 0, 0, 0)
elif how == "cleared":
    begin = int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[45])
    libc.munmap(ctypes.c_void_p(begin & -4096), ctypes.c_size_t(4096 * (2 + len(sys.orig_argv[2]) // 4096)))
print("ready", flush=True)
time.sleep(600)
"""
LISTING = """
import resource, sys; sys.path[:0] = {path!r}
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
from pathlib import Path
from epochal.service.runtime.launchers.local import LocalLauncher
launcher = LocalLauncher(Path({logs!r}), {command!r}, Path({spares!r}))
import time
begin = time.monotonic()
found = sorted(f"{{name}} {{reference.identity}}" for name, reference in launcher.drivers().items())
print(time.monotonic() - begin, *found, sep="\\n")
"""


@contextmanager
def processes_with(command: tuple[str, ...], arguments_of: list[tuple[str, ...]]) -> Iterator[list[LocalProcess]]:
    """Start session leaders with a driver's command and these arguments, the first of which selects a disguise."""
    started = [
        subprocess.Popen(
            [*command, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for _, *arguments in arguments_of
    ]
    try:
        for process, (how, *_) in zip(started, arguments_of, strict=True):
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(how + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == "ready\n"
        yield [found for process in started if (found := LocalProcess.find(process.pid)) is not None]
    finally:
        for process in started:
            process.kill()
            process.communicate()


def hostile_claims(spares: Path) -> dict[str, Path]:
    """Invalid claim files that an author's process can name, by their fault."""
    spares.mkdir()
    paths = {
        name: spares / f"{number:032x}.claim"
        for number, name in enumerate(
            (
                "fifo",
                "binary",
                "digits",
                "long",
                "link",
                "link to a device",
                "folder",
                "empty",
                "other digits",
                "socket",
            )
        )
    }
    os.mkfifo(paths["fifo"])
    paths["binary"].write_bytes(bytes(range(128, 256)))
    paths["digits"].write_text("e1-" + "9" * 5000)
    paths["long"].write_text("e1-1" + " " * 200)
    (spares.parent / "outside.claim").write_text("e1-1")
    paths["link"].symlink_to(spares.parent / "outside.claim")
    paths["link to a device"].symlink_to("/dev/zero")
    paths["folder"].mkdir()
    paths["empty"].touch()
    paths["other digits"].write_text("e1-\N{ARABIC-INDIC DIGIT ONE}")
    with socket.socket(socket.AF_UNIX) as bound:
        os.chdir(spares)
        bound.bind(paths["socket"].name)
    (spares / "work").mkdir()
    (spares / "work" / f"{1:032x}.claim").write_text("e1-1")
    (spares / "other.claim").write_text("e1-1")
    return paths | {
        "device": Path("/dev/zero"),
        "outside": spares.parent / "outside.claim",
        "below": spares / "work" / f"{1:032x}.claim",
        "other name": spares / "other.claim",
        "upwards": spares / ".." / "outside.claim",
    }


def test_claims_that_are_not_claim_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spares = tmp_path / "spares"
    for name, path in hostile_claims(spares).items():
        with pytest.raises(ValueError, match="the claim file"):
            pytest.fail(f"{name}: {claimed_name(path, spares)}")
    good = spares / f"{'a' * 32}.claim"
    assert claimed_name(good, spares) is None
    good.write_text("0193f1c2-17")
    assert claimed_name(good, spares) == DriverName("0193f1c2", 17)


def test_hostile_processes_do_not_delay_or_stop_the_listing_of_drivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = (sys.executable, "-c", f"{HOSTILE}\n# {tmp_path}")
    spares = tmp_path / "spares"
    claims = hostile_claims(spares)
    good = spares / f"{'a' * 32}.claim"
    good.write_text("e2-3")
    arguments_of = [("", "e1-2"), ("", SPARE, str(good)), ("name", "e3-1")]
    arguments_of += [("", SPARE, str(path)) for path in claims.values()]
    arguments_of += [
        ("", "e1-" + "9" * 5000),
        ("", "e1-\N{ARABIC-INDIC DIGIT TWO}"),
        ("", "x" * 100_000),
        ("", "\x01-1"),
    ]
    arguments_of += [("cleared", "e4-1")] * 4
    with processes_with(command, arguments_of) as started:
        script = LISTING.format(path=sys.path, logs=str(tmp_path), command=command, spares=str(spares))
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    seconds, *found = done.stdout.splitlines()
    assert found == [f"e1-2 {started[0]}", f"e2-3 {started[1]}", f"e3-1 {started[2]}"]
    assert float(seconds) < 2.5  # the four without a command share the wait of one second
    assert done.stderr.count("is not counted as a driver") == len(claims)


def test_a_launched_process_takes_precedence_over_one_with_its_name(tmp_path: Path) -> None:
    launcher = LocalLauncher(tmp_path / "logs", (sys.executable, "-c", f"import time; time.sleep(600)\n# {tmp_path}"))
    orders = orders_of(tmp_path, 1)
    name = DriverName(orders.execution, orders.attempt)
    forged: list[subprocess.Popen[bytes]] = []

    def forge() -> None:
        forged.append(subprocess.Popen([*launcher._command, str(name)], start_new_session=True))

    reference = launcher.launch(orders)
    try:
        for _ in range(3):
            forge()
        eventually(lambda: len(list(launcher._processes())) == 4, 30)
        assert launcher.drivers() == {name: reference}
        forged[0].kill()
        forged[0].wait()
        assert launcher.launch(orders) == reference
    finally:
        for process in forged:
            process.kill()
            process.wait()
        launcher.terminate(reference, kill=True)
        eventually(lambda: not launcher.alive(reference), 30)


def test_a_false_claim_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    command = (sys.executable, "-c", f"{HOSTILE}\n# {tmp_path}")
    launcher = LocalLauncher(tmp_path / "logs", command, tmp_path / "spares")
    with processes_with(command, [("", SPARE, "/dev/zero")]) as [process]:
        for _ in range(3):
            assert launcher.drivers() == {}
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        f"process {process} is not counted as a driver: the claim file is not in {os.path.realpath(tmp_path)}/spares"
    ]
