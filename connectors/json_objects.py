"""JSON lines, one object a line: Spark's parser takes the first value of a text and ignores whatever follows it.

A line is parsed inside of ``{"r": [LINE]}``. What follows the line's first value then is a comma, and the array has two
elements; or it closes the array, and begins with ``]``. So, a line of one element is one object unless a ``]`` comes
after a ``}`` in it; only such lines are parsed once more, inside of ``{"r": LINE}``, which a ``]`` would break.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

_CORRUPT = "_corrupt"
_CLOSED_BEFORE = r"\}[ \t\r\n]*\]"


def parsed(text: Column, schema: StructType, options: Mapping[str, str]) -> Column:
    """What :func:`record` and :func:`fits` take; a column of its own, as Spark would else parse for each field."""
    import pyspark.sql.functions as F
    from pyspark.sql.types import ArrayType, StringType, StructType

    inside = StructType().add("r", ArrayType(schema)).add(_CORRUPT, StringType())
    # After a line break, as it ends a comment where these are allowed.
    return F.from_json(F.concat(F.lit('{"r":['), text, F.lit("\n]}")), inside, _kept(options))


def record(parsed: Column) -> Column:
    """The line's object, a struct of the schema; null where there is none."""
    import pyspark.sql.functions as F

    return F.get(parsed["r"], F.lit(0))


def fits(parsed: Column, text: Column, options: Mapping[str, str]) -> Column:
    """Whether the text is one object that fits the schema, and nothing else. Null for null."""
    import pyspark.sql.functions as F

    inside = f"r struct<`_`: int>, {_CORRUPT} string"
    again = F.from_json(F.concat(F.lit('{"r":'), text, F.lit("\n}")), inside, _kept(options))
    comments = str(options.get("allowComments", "false")).lower() == "true"
    suspect = F.lit(True) if comments else F.rlike(text, F.lit(_CLOSED_BEFORE))
    one = parsed[_CORRUPT].isNull() & (F.size(parsed["r"]) == 1) & record(parsed).isNotNull()
    return F.when(text.isNotNull(), F.coalesce(one & (~suspect | again[_CORRUPT].isNull()), F.lit(False)))


def _kept(options: Mapping[str, str]) -> dict[str, str]:
    return {**options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
