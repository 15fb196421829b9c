"""Wrong ways to export and import packs of small files."""

from __future__ import annotations

from typing import Any

from tests.mutants.mutant import change, mutant

READING = "tests/unit/test_bundle_packs.py::test_"
MOVING = "tests/unit/property/test_packed_bundles.py"


@mutant("bundles: bounds of packed files are not checked", f"{READING}a_file_outside_its_pack_is_refused")
def _outside_of_a_pack() -> None:
    from epochal.snapshots.bundle_packs import PackChecks

    def unbounded(add_file: Any) -> Any:
        def wrong(self: Any, file: Any, place: Any) -> bool:
            add_file(self, file, place)
            self._parts[place.path].clear()
            return True

        return wrong

    change(PackChecks, "add_file", unbounded)


@mutant("bundles: a pack may end with anything", f"{READING}a_pack_ends_with_a_manifest_of_its_epoch")
def _any_ending() -> None:
    from epochal.snapshots.bundle_packs import PackChecks

    change(PackChecks, "_ends_well", lambda _: lambda self, *_: True)


@mutant("bundles: a renamed pack has the manifest of the original", MOVING)
def _with_the_original_manifest() -> None:
    from dataclasses import replace

    from epochal.service.commands.bundles import mapping

    def whole(member: Any, renaming: Any) -> Any:
        for path in member.paths:
            yield replace(member, paths=(renaming.path(path),))

    change(mapping, "_without_manifests", lambda _: whole)


@mutant("bundles: packs of older epochs are left out", MOVING)
def _without_older_packs() -> None:
    from epochal.service.commands.bundles import exports
    from epochal.snapshots.bundle_writing import BundleFiles

    def forgetful(files_of: Any) -> Any:
        def wrong(*arguments: Any) -> Any:
            found = files_of(*arguments)
            own = {reference.path for reference in found.manifests}
            packs = {path: pack for path, pack in found.packs.items() if path in own}
            return BundleFiles(found.since, found.manifests, found.files, packs)

        return wrong

    change(exports, "files_of", forgetful)


@mutant("bundles: an increment that its base does not need stays one", MOVING)
def _needless_increment() -> None:
    from epochal.snapshots import bundle_writing

    change(bundle_writing, "reaches", lambda _: lambda *_: True)


@mutant("bundles: the header lacks branches between those of files", MOVING)
def _gaps_in_the_line_of_branches() -> None:
    from epochal.service.catalog.bundles import ExportedRows

    def with_gaps(branches: Any) -> Any:
        return lambda self, snapshot, ids: tuple(each for each in branches(self, snapshot, ids) if each.id in ids)

    change(ExportedRows, "branches", with_gaps)
