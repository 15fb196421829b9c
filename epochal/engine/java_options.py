"""Options of the JVM of a driver, for what a driver does: it starts, often, and runs small jobs for a long time.

What the author gives goes before: the JVM takes the last of several values of an option, and a collector that somebody
names is not chosen again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from epochal.engine.class_archive import JAVA_OPTIONS, archive_options

MEMORY = "spark.driver.memory"
_FEW_CORES = 2
# Ten times the JVM's own thresholds. Those of C2, its slow and thorough compiler, are reached within the first epochs
# by thousands of methods of Spark's planning; a third of a new driver's CPU was for that. Loops over rows reach these.
_COMPILED_LATER = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")
_READ_BY_EVERY_JVM = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")


def java_options(settings: Mapping[str, str]) -> str:
    """Beside those of ``settings``, Spark's, as the author gave them: the archive of Spark's classes, a compiler that
    leaves the cores to the first epochs and, where cores are few and the heap is Spark's usual, one thread to collect.
    """
    authors = settings.get(JAVA_OPTIONS, "")
    ours = ["" if "Archive" in authors else archive_options(), _COMPILED_LATER]
    named = _COLLECTOR.search(" ".join([authors, *(os.environ.get(name, "") for name in _READ_BY_EVERY_JVM)]))
    if named is None and MEMORY not in settings and (os.cpu_count() or 1) <= _FEW_CORES:
        ours.append("-XX:+UseSerialGC")
    return " ".join(filter(None, [*ours, authors]))
