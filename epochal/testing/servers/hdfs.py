"""A private HDFS: a NameNode and a DataNode, each a JVM, from the archives that Maven fetches.

It has one replica, listens on loopback only, and is initially empty. Each caller works in its own folder:
:meth:`HdfsServer.create_folder`. The superuser is the user that runs the tests. Any other name is an ordinary user;
HDFS accepts names without authentication, as it does without Kerberos.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import secrets
import shutil
import signal
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from epochal.testing.servers.maven import SHORT_LIVED, artifacts, class_path, java
from epochal.testing.servers.process import LOOPBACK, ServerProcess, free_port

ARTIFACTS = ("org.apache.hadoop:hadoop-client-minicluster:3.5.0", "org.slf4j:slf4j-nop:1.7.36")
NAME_NODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
DATA_NODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
ADMINISTRATION = "org.apache.hadoop.hdfs.tools.DFSAdmin"
START_SECONDS = 60


class HdfsServer:
    """A running HDFS. ``url`` is the NameNode's WebHDFS address, ``store_url`` the address for fsspec and Spark."""

    def __init__(self, jars: Path, folder: Path) -> None:
        self.folder = folder
        self.user = getpass.getuser()
        self._jars = jars
        self._rpc_port, self._http_port = free_port(), free_port()
        self.rpc_address = f"{LOOPBACK}:{self._rpc_port}"
        self.url = f"http://{LOOPBACK}:{self._http_port}"
        self.store_url = f"webhdfs://{self.user}@{LOOPBACK}:{self._http_port}"
        _write_settings(folder, self._rpc_port, self._http_port)
        self.data_node = self._start(DATA_NODE)  # it waits for the NameNode; starting it first saves time
        try:
            self._run_to_the_end(NAME_NODE, "-format", "-nonInteractive", "-force")
            self.name_node = self._start(NAME_NODE)
        except BaseException:
            self.data_node.stop(signal.SIGKILL)
            raise

    def create_folder(self, owner: str | None = None) -> str:
        """Create an empty folder with a unique name and return its path. ``owner`` defaults to the superuser."""
        path = f"/tests/{secrets.token_hex(6)}"
        self.call("PUT", path, "MKDIRS", permission="755")
        if owner is not None:
            self.call("PUT", path, "SETOWNER", owner=owner)
        return path

    def set_quota(self, path: str, names: int | None = None, bytes: int | None = None) -> None:
        """Limit the number of names of a folder, and its bytes over all replicas."""
        limits = {"namespacequota": names, "storagespacequota": bytes}
        self.call("PUT", path, "SETQUOTA", **{name: str(value) for name, value in limits.items() if value is not None})

    def enter_safe_mode(self) -> None:
        """Make the NameNode refuse every change until :meth:`leave_safe_mode`."""
        self._run_to_the_end(ADMINISTRATION, "-safemode", "enter")

    def leave_safe_mode(self) -> None:
        self._run_to_the_end(ADMINISTRATION, "-safemode", "leave")

    def stop_name_node(self, kill: bool = False) -> None:
        """Stop the NameNode (``kill``: with SIGKILL). Acknowledged changes are kept."""
        self.name_node.stop(signal.SIGKILL if kill else signal.SIGTERM)

    def start_name_node(self) -> None:
        """Start the NameNode on the same data and ports, and wait until files can be written."""
        self.name_node = self._start(NAME_NODE)
        self.wait_until_ready()

    def restart_name_node(self, kill: bool = False) -> None:
        self.stop_name_node(kill)
        self.start_name_node()

    @contextmanager
    def paused_name_node(self) -> Iterator[None]:
        """Stop the NameNode (SIGSTOP) within the block: it accepts connections and does not answer."""
        self.name_node.send(signal.SIGSTOP)
        try:
            yield
        finally:
            self.name_node.send(signal.SIGCONT)

    def wait_until_ready(self) -> None:
        """Wait until files can be written. Raises ``ServerUnavailable`` with the end of a log."""
        self.name_node.wait_until(self._has_name_node, START_SECONDS)
        self.data_node.wait_until(self._takes_files, START_SECONDS)

    def stop(self) -> None:
        self.data_node.stop(signal.SIGKILL)
        self.name_node.stop(signal.SIGKILL)

    def call(self, method: str, path: str, operation: str, **parameters: str) -> Any:
        """Perform one WebHDFS operation as the superuser, without a client package. Returns the JSON answer, if any."""
        query = "&".join(f"{name}={value}" for name, value in parameters.items())
        url = f"{self.url}/webhdfs/v1{path}?op={operation}&user.name={self.user}" + (f"&{query}" if query else "")
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=10) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def _start(self, program: str) -> ServerProcess:
        name = program.rpartition(".")[2]
        return ServerProcess(f"HDFS's {name}", self._command(program), self.folder / f"{name}.log")

    def _run_to_the_end(self, program: str, *arguments: str) -> None:
        name = program.rpartition(".")[2]
        command = self._command(program, *arguments)
        ServerProcess(f"HDFS's {name}", command, self.folder / f"{name}-command.log").wait_for_success(START_SECONDS)

    def _command(self, program: str, *arguments: str) -> Sequence[str]:
        path = class_path(self._jars, self.folder / "settings")
        return [java(), "-Xmx256m", *SHORT_LIVED, "-cp", path, program, *arguments]

    def _has_name_node(self) -> bool:
        """Check that the NameNode answers and accepts changes."""
        url = f"{self.url}/jmx?qry=Hadoop:service=NameNode,name=NameNodeInfo"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return bool(json.load(answer)["beans"][0]["Safemode"] == "")
        except (urllib.error.URLError, OSError, ValueError, IndexError, KeyError):
            return False

    def _takes_files(self) -> bool:
        """Check that a file can be written.

        A DataNode can be registered without having reported, or without having found a restarted NameNode.
        """
        with contextlib.suppress(urllib.error.URLError, OSError):
            place = self.call("PUT", "/ready", "CREATE", noredirect="true", overwrite="true")["Location"]
            with urllib.request.urlopen(urllib.request.Request(place, b"x", method="PUT"), timeout=10):
                self.call("DELETE", "/ready", "DELETE")
                return True
        return False


@contextmanager
def hdfs() -> Iterator[HdfsServer]:
    """Start an empty HDFS; stop it and remove its data at the end.

    Raises ``ServerUnavailable`` if Java, Maven or the network is missing.
    """
    jars = artifacts("hdfs", ARTIFACTS)
    folder = Path(tempfile.mkdtemp(prefix="epochal-hdfs-"))
    try:
        server = HdfsServer(jars, folder)
        try:
            server.wait_until_ready()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_settings(folder: Path, rpc_port: int, http_port: int) -> None:
    settings = folder / "settings"
    settings.mkdir()
    _write_site(settings / "core-site.xml", {"fs.defaultFS": f"hdfs://{LOOPBACK}:{rpc_port}"})
    data_node = {name: f"{LOOPBACK}:{free_port()}" for name in ("address", "http.address", "ipc.address")}
    _write_site(
        settings / "hdfs-site.xml",
        {
            "dfs.replication": 1,
            "dfs.namenode.name.dir": (folder / "name").as_uri(),
            "dfs.namenode.http-address": f"{LOOPBACK}:{http_port}",
            "dfs.namenode.rpc-bind-host": LOOPBACK,
            "dfs.namenode.safemode.extension": 0,
            # The DataNode is found immediately after a restart of the NameNode.
            "dfs.heartbeat.interval": 1,
            # The client asks again after 10 ms, not 400 ms, if the NameNode does not yet list a file as stored.
            "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": 10,
            "dfs.datanode.data.dir": (folder / "data").as_uri(),
            "dfs.datanode.hostname": "localhost",
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.namenode.fs-limits.min-block-size": 4096,
            **{f"dfs.datanode.{name}": address for name, address in data_node.items()},
        },
    )


def _write_site(path: Path, values: Mapping[str, object]) -> None:
    properties = "".join(
        f"<property><name>{escape(name)}</name><value>{escape(str(value))}</value></property>\n"
        for name, value in values.items()
    )
    path.write_text(f"<configuration>\n{properties}</configuration>\n")
