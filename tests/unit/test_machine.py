from __future__ import annotations

import socket
import subprocess
import sys

from epochal.service.runtime.machine import this_machine


def test_processes_of_a_machine_report_the_same_identity() -> None:
    program = "from epochal.service.runtime.machine import this_machine as m; print(m().host, m().boot, sep='|')"
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
    here = this_machine()
    assert other == f"{here.host}|{here.boot}"
    assert here.host == socket.gethostname()
    assert here.boot
