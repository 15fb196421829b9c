"""Wrong ways to take the cursors of callers."""

from __future__ import annotations

import base64
from typing import Any

from tests.mutants.mutant import change, mutant

FOREIGN = "tests/service/test_foreign_cursors.py"


@mutant("cursors: the signature of a cursor is not verified", FOREIGN)
def _any_signature() -> None:
    from epochal.service.domain.pages import CursorSeal

    def wrong(_: Any) -> Any:
        def opened(self: CursorSeal, cursor: str) -> bytes:
            data = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
            return data if data.startswith(b"[") else data[16:]

        return opened

    change(CursorSeal, "open", wrong)


@mutant("cursors: a cursor of one list is accepted by another list", FOREIGN)
def _any_list() -> None:
    from epochal.service.domain.pages import CursorSeal

    def wrong(signature: Any) -> Any:
        return lambda self, content: signature(CursorSeal(self.key, ()), content)

    change(CursorSeal, "_signature", wrong)


@mutant("cursors: a key is not looked up in the lineage of the application", FOREIGN)
def _any_lineage() -> None:
    from epochal.service.catalog.snapshots import SnapshotRepository

    change(SnapshotRepository, "of_application", lambda _: lambda self, application, key: self.reference(key))
