"""Programs: a Python class with state elements and entries, run as it is or translated to a stateful dataflow graph."""

from __future__ import annotations

from epochal.programs.declaration import entry, program, sequential
from epochal.programs.distribution import Collection, Global, Partial, Partitioned, PartitionedByColumn
from epochal.programs.maps import Counter, Map
from epochal.programs.matrices import DenseMatrix, Matrix
from epochal.programs.rules import ProgramRefused
from epochal.programs.state import FrozenValue
from epochal.programs.translation import translate
from epochal.programs.vector import Vector

__all__ = [
    "Collection",
    "Counter",
    "DenseMatrix",
    "FrozenValue",
    "Global",
    "Map",
    "Matrix",
    "Partial",
    "Partitioned",
    "PartitionedByColumn",
    "ProgramRefused",
    "Vector",
    "entry",
    "program",
    "sequential",
    "translate",
]
