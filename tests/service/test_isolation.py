"""Isolation of authors' code from the control plane's secrets, with a real builder and a real driver of another user.

The control plane of these tests runs as root, with a Python that other users may run. If the tests' own Python lies
below a closed folder, they use another of the same version with the same packages, or are skipped.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import epochal
from epochal.client import Client
from epochal.driver.orders import ArtifactOrder, DriverOrders
from epochal.errors import EnvironmentProblem, EpochalError, OptionError, SnapshotError
from epochal.service.domain.settings import Settings
from epochal.service.runtime.folders import prepare_folders
from epochal.service.runtime.isolation import ProcessUser, find_user, identity_of, isolation_of
from epochal.service.runtime.launchers.local import LocalLauncher
from epochal.service.runtime.logs.files import log_path
from epochal.service.runtime.warm_pool import PoolTimes
from epochal.snapshots import layout
from epochal.snapshots.store import SnapshotStore
from epochal.testing.servers.control_plane import process_id
from epochal.testing.servers.process import ServerProcess, accepts, free_port
from tests.kit.waiting import eventually

USER = "nobody"
IS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of another user")

HOSTILE = """
import os, pathlib
from epochal import Pipeline

def attempt(path):
    try:
        return open(path, "rb").read()[:2000].decode("latin-1")
    except OSError as error:
        return error.strerror

def parents():
    pid = os.getpid()
    while pid > 1:
        pid = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        yield pid

def build():
    found = {f"/proc/{pid}/environ": attempt(f"/proc/{pid}/environ") for pid in parents()}
    for path in __PATHS__:
        found[path] = attempt(path)
    found["listing"] = "denied" if not os.access(__DATA__, os.R_OK) else os.listdir(__DATA__)
    raise ValueError(f"uid={os.getuid()} {found}")
"""


@pytest.fixture(scope="module")
def open_folder() -> Iterator[Path]:
    """A folder that other users may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="epochal-isolation-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="module")
def python(open_folder: Path) -> str:
    """A Python that the other user can run, with this environment's packages."""
    user = find_user(USER)
    if user is None:
        pytest.skip(f"there is no user {USER}")
    packages = [path for path in sys.path if path.endswith("site-packages")] + [str(checkout())]
    same_version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for base in (os.path.realpath(sys.executable), f"/usr/bin/{same_version}", f"/usr/local/bin/{same_version}"):
        found = open_folder / "environment" / "bin" / "python"
        if not Path(base).exists():
            continue
        shutil.rmtree(open_folder / "environment", ignore_errors=True)
        made = subprocess.run([base, "-m", "venv", "--without-pip", open_folder / "environment"], check=False)
        if made.returncode:
            continue
        (own,) = (open_folder / "environment" / "lib").glob("python*/site-packages")
        (own / "tests.pth").write_text("\n".join(packages))
        if _runs(found, user):
            return str(found)
    pytest.skip(f"{USER} can run no Python {same_version} with these packages: they lie below folders closed to it")


def _runs(python: Path, user: ProcessUser) -> bool:
    command = [str(python), "-c", "import epochal.driver.main"]
    try:
        done = subprocess.run(command, user=user.uid, group=user.gid, extra_groups=[], cwd="/", env={}, check=False)
    except PermissionError:
        return False
    return done.returncode == 0


def checkout() -> Path:
    return Path(epochal.__file__).resolve().parents[1]


def run_as_control_plane(python: str, script: str, **environment: str) -> str:
    """Run the script with an interpreter that other users may run; returns its output."""
    variables = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **environment}
    done = subprocess.run(
        [python, "-c", script], capture_output=True, text=True, env=variables, cwd="/", timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


BUILD = """
import json, sys
from pathlib import Path
from epochal.errors import EpochalError
from epochal.service.runtime.artifact_files import keep
from epochal.service.runtime.builder.subprocess_builder import SubprocessBuilder
from epochal.service.catalog.database import Database
from epochal.service.catalog.migration import migrate_database
from epochal.service.catalog.tokens import ensure_admin_token
from epochal.service.runtime.folders import prepare_folders
from epochal.service.runtime.isolation import isolation_of
from epochal.service.domain.settings import Settings

settings = Settings(data=Path({data!r}))
isolation = isolation_of(settings)
assert isolation.user is not None, isolation.reason
prepare_folders(settings, isolation.user)
database = Database(settings.database_url)
migrate_database(database)
ensure_admin_token(database, settings.admin_token_file)
artifact = settings.artifact_cache_directory / "abc" / "pipeline.py"
keep(artifact, Path({code!r}).read_bytes())
builder = SubprocessBuilder(isolation.user, settings.home_directory)
builder.open()
try:
    builder.describe("default", artifact, {{}})
except EpochalError as error:
    print(json.dumps([isolation.user.name, error.slug, error.message]))
builder.close()
"""


@IS_ROOT
@pytest.mark.slow
def test_a_hostile_pipeline_reads_no_secrets_of_the_control_plane(open_folder: Path, python: str) -> None:
    data = open_folder / "data"
    secrets = [
        data / "admin.token",
        data / "catalog.sqlite",
        data / "catalog.sqlite-wal",
        data / "imports",
        data / "logs",
        data / "store" / "artifacts",
        data / "store" / "exports",
    ]
    code = open_folder / "hostile.py"
    paths = json.dumps([str(path) for path in secrets])
    code.write_text(HOSTILE.replace("__PATHS__", paths).replace("__DATA__", repr(str(data))))

    script = BUILD.format(data=str(data), code=str(code))
    output = run_as_control_plane(python, script, EPOCHAL_DATABASE_URL="secret-in-the-environment")

    name, slug, message = json.loads(output)
    assert (name, slug) == (find_default(), "invalid-artifact")
    uid = pwd.getpwnam(name).pw_uid
    assert f"uid={uid} " in message  # the code ran
    token = (data / "admin.token").read_text().strip()
    assert token not in message and "SQLite format" not in message
    assert "secret-in-the-environment" not in message
    assert message.count("Permission denied") >= len(secrets) + 1
    assert "'listing': 'denied'" in message


def find_default() -> str:
    return "epochal" if find_user("epochal") is not None else USER


@IS_ROOT
@pytest.mark.slow
@pytest.mark.long
def test_drivers_of_another_user_run_restart_and_continue_from_imports(open_folder: Path, python: str) -> None:
    """Drivers use the checkout, the caches and the store, into which the control plane writes as well."""
    folder = open_folder / "running"
    folder.mkdir(mode=0o755)
    uid = pwd.getpwnam(find_default()).pw_uid
    for name in ("input", "first", "second"):
        (folder / name).mkdir()
    for name in ("first", "second"):
        os.chown(folder / name, uid, -1)
    port = free_port()
    environment = {
        **{name: os.environ[name] for name in ("PATH", "JAVA_HOME", "HOME") if name in os.environ},
        "EPOCHAL_HOME": str(folder / "home"),
        "EPOCHAL_WARM_DRIVERS": "0",
    }
    command = [python, "-m", "epochal.cli.main", "up", "--port", str(port), "--internal-port", "0"]
    plane = ServerProcess("the control plane", command, folder / "log", environment, directory=folder)
    try:
        plane.wait_until(lambda: accepts(port) and (folder / "home" / "admin.token").exists(), 60)
        assert "own user" not in plane.log_end()
        token = (folder / "home" / "admin.token").read_text().strip()
        with Client(f"http://127.0.0.1:{port}", token) as client:
            _run_and_move(client, folder, uid)
    finally:
        plane.stop()


def _run_and_move(client: Client, folder: Path, uid: int) -> None:
    artifact = client.artifacts.upload(checkout() / "examples" / "wrong_number" / "pipeline.py")
    client.applications.create(
        "sales", artifact.sha256, parameters=_parameters(folder, "first"), configuration={"epoch_interval_seconds": 0.1}
    )
    _sell(folder, "2024-03-04")
    eventually(lambda: _revenue(client, "sales") == 1, 180)
    driver = _driver(client, "sales")
    try:
        assert {Path(f"/proc/{pid}").stat().st_uid for pid in _session(driver)} == {uid}
        os.killpg(driver, signal.SIGKILL)
        _sell(folder, "2024-03-05")
        eventually(lambda: _revenue(client, "sales") == 2, 180)
        for secret in ("admin.token", "catalog.sqlite", "exports"):
            assert not _readable_by(uid, folder / "home" / secret)

        export = client.operations.wait(client.application("sales").exports.create())
        client.application("sales").exports.fetch(export, folder / "bundle")
        client.operations.wait(client.applications.stop("sales"))
        upload = client.imports.upload(folder / "bundle")
        order = {"name": "copy", "parameters": _parameters(folder, "second"), "start": True}
        client.operations.wait(client.imports.make(upload.id, **order))
        _sell(folder, "2024-03-06")
        eventually(lambda: _revenue(client, "copy") == 3, 180)
    finally:
        for name in ("sales", "copy"):
            with suppress(EpochalError):
                client.operations.wait(client.applications.stop(name))


def _parameters(folder: Path, output: str) -> dict[str, str]:
    place = folder / output
    database = f"sqlite:///{place / 'shops.sqlite'}"
    return {"input": str(folder / "input"), "output": str(place / "changes"), "database": database}


def _sell(folder: Path, day: str) -> None:
    sale = {"shop": "lyon", "day": day, "amount": "1.00", "unit": "euro"}
    (folder / "input" / f".{day}").write_text(json.dumps(sale) + "\n")
    (folder / "input" / f".{day}").rename(folder / "input" / f"{day}.json")


def _revenue(client: Client, application: str) -> int | None:
    with suppress(EpochalError):
        value = client.application(application).state("revenue").get("lyon").value
        return None if value is None else int(value["sales"])
    return None


def _driver(client: Client, application: str) -> int:
    (execution,) = client.application(application).executions.list(limit=1)
    return process_id(execution.attempts[-1].process or "")


def _session(leader: int) -> list[int]:
    """The processes of the driver: itself, its JVM and its Python workers."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(int(path.name)) == leader:
                found.append(int(path.name))
    assert len(found) > 1
    return found


def _readable_by(uid: int, path: Path) -> bool:
    reading = ["/bin/cat", str(path)]
    return (
        subprocess.run(reading, user=uid, group=uid, extra_groups=[], capture_output=True, check=False).returncode == 0
    )


SEARCH = """
import json, os, sys
from pathlib import Path

def content(path):
    try:
        return path.read_bytes().decode("latin-1")
    except OSError:
        return None

processes = [path for path in map(Path, sys.argv[2:])]
readable = [str(path / name) for path in processes for name in ("environ", "maps", "mem") if content(path / name)]
for path in processes:
    try:
        readable += [str(path / "fd" / name) for name in os.listdir(path / "fd")]
    except OSError:
        pass
commands = [content(path / "cmdline") for path in processes]
files = []
for folder, _, names in os.walk(sys.argv[1]):
    files += [os.path.join(folder, name) for name in names if os.access(os.path.join(folder, name), os.R_OK)]
opened = [name for name in ("admin.token", "catalog.sqlite", "logs", "pods", "hints", "replicas", "imports")
          if os.access(os.path.join(sys.argv[1], name), os.R_OK | os.X_OK)]
opened += [name for name in ("admin.token", "catalog.sqlite") if content(Path(sys.argv[1], name)) is not None]
print(json.dumps([readable, commands, files, opened]))
"""


@IS_ROOT
@pytest.mark.slow
def test_the_user_of_drivers_cannot_read_files_and_processes(open_folder: Path, python: str) -> None:
    """Covers the environment, memory, descriptors and commands of all processes of a running control plane."""
    user = find_user(find_default())
    assert user is not None
    folder = open_folder / "plane"
    folder.mkdir(mode=0o755)
    port = free_port()
    environment = {
        **{name: os.environ[name] for name in ("PATH", "JAVA_HOME", "HOME") if name in os.environ},
        "EPOCHAL_HOME": str(folder / "home"),
        "EPOCHAL_WARM_DRIVERS": "0",
        "EPOCHAL_SECRET_PASSWORD": "secret-in-the-environment",
    }
    command = [python, "-m", "epochal.cli.main", "up", "--port", str(port), "--internal-port", "0"]
    plane = ServerProcess("the control plane", command, folder / "log", environment, directory=folder)
    try:
        plane.wait_until(lambda: accepts(port) and (folder / "home" / "admin.token").exists(), 60)
        token = (folder / "home" / "admin.token").read_text().strip()
        with Client(f"http://127.0.0.1:{port}", token) as client:
            client.applications.list()
        own = [path for path in Path("/proc").glob("[0-9]*") if _is_of(path, folder) and path.stat().st_uid == 0]
        assert len(own) >= 2  # includes its internal server
        done = subprocess.run(
            [python, "-c", SEARCH, str(folder / "home"), *map(str, own)],
            capture_output=True,
            text=True,
            cwd="/",
            env={},
            check=True,
            **identity_of(user),
        )
        readable, commands, files, opened = json.loads(done.stdout)
        assert readable == [] and files == [] and opened == []
        assert all(commands)  # every user can read commands
        text = "".join(commands)
        assert token not in text and "secret-in-the-environment" not in text and "ept_" not in text
    finally:
        plane.stop()


def _is_of(process: Path, folder: Path) -> bool:
    with suppress(OSError):
        return f"EPOCHAL_HOME={folder}/home".encode() in (process / "environ").read_bytes()
    return False


CLOSED = """
import subprocess, sys
from epochal.service.runtime.undumpable import close_process
read = "import os; print(len(open(f'/proc/{os.getppid()}/environ').read()), open(f'/proc/{os.getppid()}/mem', 'rb'))"
before = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True)
close_process()
after = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True)
print(before.returncode, after.returncode, after.stderr.strip().splitlines()[-1])
"""


SPARE = """
import os, socket
control = socket.socket(fileno=os.dup(0))
lines = control.makefile("rb", buffering=0)
lines.readline()
control.sendall(b'{"seconds": 0}\\n')
while (line := lines.readline()) == b"?\\n":
    control.sendall(b".\\n")
print(os.getuid(), os.getcwd(), os.environ["HOME"], b"secret-token" in line, flush=True)
"""


@IS_ROOT
def test_a_spare_driver_runs_as_the_user_of_drivers(open_folder: Path, python: str) -> None:
    user = find_user(USER)
    assert user is not None
    settings = Settings(data=open_folder / "spares")
    prepare_folders(settings, user)
    launcher = LocalLauncher(settings.logs_directory, (python, "-c", SPARE))
    launcher.run_as(user, settings.home_directory)
    launcher.keep_spares(1, settings.spares_directory, PoolTimes(quiet=0, busy=0, answer=30))
    pool = launcher._spares
    assert pool is not None

    def is_ready() -> bool:
        pool.step()
        return pool.figures.ready == 1

    eventually(is_ready)
    [folder] = settings.spares_directory.glob("*.work")
    orders = DriverOrders(
        control_planes=("http://127.0.0.1:1",),
        token="secret-token",
        execution="e1",
        attempt=1,
        application="flights",
        artifact=ArtifactOrder(sha256="0" * 64, filename="pipeline.py"),
        store=str(open_folder / "store"),
        work_directory=settings.work_directory / "e1",
    )
    reference = launcher.launch(orders)
    assert pool.figures.taken == 1
    eventually(lambda: not launcher.alive(reference))
    printed = log_path(settings.logs_directory, "flights", "e1", 1).read_text()
    assert printed == f"{user.uid} {folder} {settings.home_directory} True\n"
    assert (settings.work_directory / "e1").stat().st_uid == user.uid


@pytest.mark.slow
def test_a_closed_process_hides_its_environment_from_its_own_user(python: str) -> None:
    user = find_user(USER) if os.geteuid() == 0 else None
    command = [python, "-c", CLOSED]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False, **identity_of(user))
    assert done.stdout.startswith("0 1 PermissionError"), done


@IS_ROOT
def test_folders_created_by_root_in_a_store_belong_to_its_owner(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    os.chown(tmp_path / "store", 65534, 65533)
    SnapshotStore(str(tmp_path / "store")).write("branch/epochs/0000000001/file", b"imported")
    made = [path.stat() for path in (tmp_path / "store").rglob("*")]
    assert len(made) == 4
    assert {(status.st_uid, status.st_gid) for status in made} == {(65534, 65533)}


@IS_ROOT
def test_root_does_not_follow_links_in_a_store(tmp_path: Path) -> None:
    """Through a link, authors' code could make the control plane write where the code may not."""
    store, outside = SnapshotStore(str(tmp_path / "store")), tmp_path / "outside"
    (outside / "epochs").mkdir(parents=True)
    (outside / "epochs" / "file").write_text("mine")
    store.write("branch/manifests/file", b"first")
    (tmp_path / "store" / "other").symlink_to(outside)
    (tmp_path / "store" / "branch" / "epochs").symlink_to(outside / "epochs")
    for path in ("other/epochs/file", "branch/epochs/file"):
        with pytest.raises(SnapshotError, match="symbolic link"):
            store.write(path, b"planted")
        with pytest.raises(SnapshotError, match="symbolic link"):
            store.delete(path)
    assert (outside / "epochs" / "file").read_text() == "mine"
    assert store.delete("branch/manifests/file") and not store.delete("branch/manifests/file")


@IS_ROOT
def test_only_folders_for_drivers_are_accessible_to_their_user(tmp_path: Path) -> None:
    user = ProcessUser(USER, 65534, 65533)
    settings = Settings(data=tmp_path / "data")
    for _ in range(2):
        prepare_folders(settings, user)
        folders = {path.name: path.stat() for path in (settings.data, *settings.data.iterdir())}
        assert {
            name: (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) for name, status in folders.items()
        } == {
            "data": (0, 65533, 0o710),
            "artifact-cache": (0, 65533, 0o750),
            "work": (0, 65533, 0o710),
            "spares": (0, 65533, 0o710),
            "store": (65534, 65533, stat.S_IMODE(folders["store"].st_mode)),
            "home": (65534, 65533, 0o700),
            **dict.fromkeys(("imports", "replicas", "hints", "logs", "pods"), (0, 0, 448)),
        }
        for name in layout.OF_THE_CATALOG:
            status = (settings.data / "store" / name).stat()
            assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (0, 0o700)
    prepare_folders(settings, None)
    assert stat.S_IMODE(settings.artifact_cache_directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(settings.work_directory.stat().st_mode) == 0o700


def test_an_unusable_driver_user_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no user 'no-such-user'"):
        isolation_of(Settings(data=tmp_path, driver_user="no-such-user"))
    if os.geteuid() != 0:
        with pytest.raises(OptionError, match="Only root"):
            isolation_of(Settings(data=tmp_path, driver_user=USER))
        return
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(EnvironmentProblem, match=rf"user '{USER}' cannot use .* is closed to"):
        isolation_of(Settings(data=closed / "data", driver_user=USER))


def test_without_isolation_a_warning_lists_the_readable_secrets(tmp_path: Path) -> None:
    """Either its own user is configured, or the data directory is closed to the default user."""
    for settings in (
        Settings(data=tmp_path / "closed" / "data", driver_user=None),
        Settings(data=tmp_path / "closed" / "data", driver_user=str(os.geteuid())),
    ):
        (tmp_path / "closed").mkdir(mode=0o700, exist_ok=True)
        isolation = isolation_of(settings)
        assert isolation.user is None
        warning = isolation.warning(settings)
        assert warning is not None and "\n" not in warning
        for secret in (str(settings.admin_token_file), "the catalog", "bundles", "EPOCHAL_SECRET_", "the role author"):
            assert secret in warning
