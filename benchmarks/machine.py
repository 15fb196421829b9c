"""Description of the measuring machine as one table."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

LOAD = "load before the run"
QUIET = 0.5
"""Above this load, other processes use part of the cores."""


def describe() -> Mapping[str, str]:
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    return {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        LOAD: f"{os.getloadavg()[0]:.1f} (above {QUIET:g}, other processes used part of the cores)",
        "Python": sys.version.split()[0],
        "Java": (re.search(r'"(.*?)"', java.stderr) or ["", "unknown"])[1],
        "Spark": version("pyspark"),
        "PyArrow": version("pyarrow"),
        "Epochal": version("epochal"),
    }


def is_quiet(described: Mapping[str, str]) -> bool:
    """Return whether the machine was quiet when it was described."""
    return float(described[LOAD].split()[0]) <= QUIET


def _processor() -> str:
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()
