"""JSON lines with one object per line. Detects text after the object, which Spark's parser would ignore.

A line is parsed inside ``{"r": [LINE]}``. Text after the line's first value then either starts with a comma, and the
array has two elements, or starts with ``]`` and closes the array. A line that yields one element is therefore a single
object unless it contains a ``]`` after a ``}``. Only such lines are parsed again, inside ``{"r": LINE}``, where a ``]``
is a syntax error.
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
    """The parsed text, for :func:`record` and :func:`fits`. Select it as a column; otherwise Spark parses per field."""
    import pyspark.sql.functions as F
    from pyspark.sql.types import ArrayType, StringType, StructType

    inside = StructType().add("r", ArrayType(schema)).add(_CORRUPT, StringType())
    # The line break ends a comment, if comments are allowed.
    return F.from_json(F.concat(F.lit('{"r":['), text, F.lit("\n]}")), inside, _kept(options))


def record(parsed: Column) -> Column:
    """The line's object as a struct of the schema; null if there is none."""
    import pyspark.sql.functions as F

    return F.get(parsed["r"], F.lit(0))


def fits(parsed: Column, text: Column, options: Mapping[str, str]) -> Column:
    """True if the text is a single object that fits the schema; null for null."""
    import pyspark.sql.functions as F

    inside = f"r struct<`_`: int>, {_CORRUPT} string"
    again = F.from_json(F.concat(F.lit('{"r":'), text, F.lit("\n}")), inside, _kept(options))
    comments = str(options.get("allowComments", "false")).lower() == "true"
    suspect = F.lit(True) if comments else F.rlike(text, F.lit(_CLOSED_BEFORE))
    one = parsed[_CORRUPT].isNull() & (F.size(parsed["r"]) == 1) & record(parsed).isNotNull()
    return F.when(text.isNotNull(), F.coalesce(one & (~suspect | again[_CORRUPT].isNull()), F.lit(False)))


def _kept(options: Mapping[str, str]) -> dict[str, str]:
    return {**options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
