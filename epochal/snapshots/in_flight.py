"""Records in flight in loops, and sources inside an application.

Manifest n names the records that the tail of a loop wrote in epoch n, after records left from earlier epochs; the slice
of the head in epoch n+1 takes records from the front. A snapshot therefore holds exactly the records on the back edge
(ABS, algorithm 2; thesis, algorithm 7).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from epochal.contracts.handle import Handle
from epochal.contracts.source import Slice, SliceLimits, Source
from epochal.snapshots.manifest import FileInFlight, FileReference, RecordsInFlight
from epochal.state.declared_rows import widens
from epochal.state.table import Column

FILES, HOP = "files", "hop"


def slice_of(held: RecordsInFlight, most: int | None) -> Slice | None:
    """Slice of the next records, at most ``most``; ``None`` without records."""
    taken = list(_first(held.files, most))
    if not taken:
        return None
    detail: dict[str, Any] = {FILES: [part.model_dump(mode="json") for part in taken]}
    if held.hop:
        detail[HOP] = held.hop
    return Slice(start={}, end={}, detail=detail, rows=sum(part.rows for part in taken))


def parts_of(slice: Slice) -> list[FileInFlight]:
    """Parts of files in a slice."""
    return [FileInFlight.model_validate(part) for part in slice.detail[FILES]]


def hop_of(slice: Slice | None) -> int:
    """Hop of a slice's records in an aligned loop; 0 without a slice."""
    return 0 if slice is None else int(slice.detail.get(HOP, 0))


def held_after(
    before: RecordsInFlight | None,
    slice: Slice | None,
    handles: Iterable[Handle],
    columns: Sequence[Column],
    rounds: bool,
) -> RecordsInFlight:
    """Records in flight after an epoch that took ``slice`` of the records ``before``, with the tail's ``handles``.

    ``rounds``: the loop is aligned.
    """
    left = [] if before is None else list(_without_first(before.files, 0 if slice is None else slice.rows or 0))
    written = [part for handle in handles for part in files_of(handle)]
    hop = 0
    if rounds and before is not None and left:
        hop = before.hop
    elif rounds and (written or slice is not None):
        hop = hop_of(slice) + 1
    return RecordsInFlight(columns=tuple(columns), files=(*left, *written), hop=hop)


def against_going_on(
    held: Mapping[str, RecordsInFlight], loops: Mapping[str, Sequence[Column]], may_drop: Collection[str]
) -> Iterator[str]:
    """Problems of continuing with records in flight in a version with these ``loops``, by name with their columns.

    Columns may be added, with null in these records, and widened. Loops and columns in ``may_drop`` (``ranks``,
    ``ranks.note``) may be dropped. An empty loop may change in any way.
    """
    for name, records in sorted(held.items()):
        if not records.files:
            continue
        what = f"Loop {name!r} has {records.rows} records in flight"
        instead = "Run the previous version until the loop is empty"
        if name not in loops:
            if name not in may_drop:
                yield f"{what}, and is not in this version. {instead}, or add {name!r} to allow_dropped_state."
            continue
        types = {column.name: column.type for column in loops[name]}
        for column in records.columns:
            path, type = f"{name}.{column.name}", types.get(column.name)
            if type is None and path not in may_drop:
                consent = f"add {path!r} to allow_dropped_state"
                yield f"{what}, with a column {column.name!r} that was dropped. {instead}, or {consent}."
            elif type is not None and type != column.type and not widens(column.type, type):
                yield f"{what}, whose column {column.name!r} is {column.type} and would be {type}. {instead}."


def files_of(handle: Handle) -> list[FileInFlight]:
    """Files that a subtask of a loop's tail has written."""
    files = [FileReference.model_validate(file) for file in handle.payload.get(FILES, [])]
    return [FileInFlight(file=file, first=0, last=file.rows) for file in files]


def payload_of(files: Sequence[FileReference]) -> dict[str, Any]:
    """The inverse of :func:`files_of`; empty for a subtask without rows."""
    return {FILES: [file.model_dump(mode="json") for file in files]} if files else {}


def _first(files: Iterable[FileInFlight], most: int | None) -> Iterator[FileInFlight]:
    for part in files:
        if most is not None and most <= 0:
            return
        last = part.last if most is None else min(part.last, part.first + most)
        yield part.model_copy(update={"last": last})
        most = None if most is None else most - (last - part.first)


def _without_first(files: Iterable[FileInFlight], taken: int) -> Iterator[FileInFlight]:
    for part in files:
        skipped = min(taken, part.rows)
        taken -= skipped
        if skipped < part.rows:
            yield part.model_copy(update={"first": part.first + skipped})


if TYPE_CHECKING:
    from epochal.snapshots.manifest import Manifest

UNLIMITED = SliceLimits(None)


class InternalSource(Source):
    """A source whose slice comes from the parent's manifest. While it has one, epochs open immediately.

    The head of a feedback edge is such a source. It has no position, so that recovery, fork and rollback restore
    nothing for it.
    """

    @abstractmethod
    def slice_of(self, parent: Manifest | None, limits: SliceLimits) -> Slice | None:
        """E1, instead of ``plan``: the records in flight at ``parent`` that the next epoch takes; ``None`` without
        records. Remaining records must be in the manifest that has the slice. Pure."""

    def is_under_way(self, parent: Manifest | None) -> bool:
        """True if an epoch opens immediately after ``parent``. Pure."""
        return self.slice_of(parent, UNLIMITED) is not None

    def holds_input_back(self, parent: Manifest | None) -> bool:
        """True if the epoch after ``parent`` takes no external input. Pure."""
        return False

    def plan(self, limits: SliceLimits) -> Slice | None:
        """Returns ``None``: the source has no external input."""
        return None

    @property
    def ended(self) -> bool:
        """Always true; ``slice_of`` keeps a run going while there are records in flight."""
        return True

    def limit_to_available(self) -> None:
        """Without effect: records in flight are always taken."""

    def restore(self, checkpoint: dict[str, Any] | None, slices: Sequence[Slice]) -> None:
        """Without effect: the parent's manifest has the records."""

    def checkpoint(self) -> dict[str, Any]:
        return {}

    def accept(self, slice: Slice) -> None:
        """Without effect: the next manifest has the records."""

    def acknowledge(self, slice: Slice) -> None:
        """Without effect: there is no external system."""


def slices_in_flight(
    sources: Mapping[str, Source], parent: Manifest | None, limits: SliceLimits = UNLIMITED
) -> dict[str, Slice]:
    """Slices of internal sources that the epoch after ``parent`` takes, by name."""
    found = {name: source.slice_of(parent, limits) for name, source in internal_sources(sources).items()}
    return {name: slice for name, slice in found.items() if slice is not None}


def under_way(sources: Mapping[str, Source], parent: Manifest | None) -> frozenset[str]:
    """Internal sources for which an epoch opens immediately after ``parent``."""
    return frozenset(name for name, source in internal_sources(sources).items() if source.is_under_way(parent))


def input_held_back(sources: Mapping[str, Source], parent: Manifest | None) -> bool:
    """True if the epoch after ``parent`` takes no external input."""
    return any(source.holds_input_back(parent) for source in internal_sources(sources).values())


def internal_sources(sources: Mapping[str, Source]) -> dict[str, InternalSource]:
    """The sources inside the application."""
    return {name: source for name, source in sources.items() if isinstance(source, InternalSource)}
