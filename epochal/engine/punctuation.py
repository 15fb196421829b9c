"""Epochs that sources cut themselves, by punctuation records: the same one at all sources that have them."""

from __future__ import annotations

from collections.abc import Mapping

from epochal.contracts.source import Slice, Source


def punctuated_together(sources: Mapping[str, Source], slices: Mapping[str, Slice]) -> dict[str, Slice]:
    """The slices that an epoch may take: of punctuated sources all, or none while one of them has yet to come.

    So the n-th punctuation of each belongs to one epoch (definition 3.4.1). One that has ended is not waited for.
    """
    punctuated = {name for name, source in sources.items() if source.punctuated}
    if all(name in slices or sources[name].ended for name in punctuated):
        return dict(slices)
    return {name: slice for name, slice in slices.items() if name not in punctuated}
