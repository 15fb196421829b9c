"""Fault points of garbage collection."""

from __future__ import annotations

from epochal.faults import declare

G1_LISTED = declare("G1.listed", "the store is listed, the catalog not yet asked")
G2_PLANNED = declare("G2.planned", "expired snapshots are known, none is marked")
G3_MARKED = declare("G3.marked", "expired snapshots are marked as collected, all files are there")
G4_DELETED = declare("G4.file-deleted", "one file is deleted, others are not")
G5_EMPTIED = declare("G5.emptied", "all files are deleted, the operation still runs")
