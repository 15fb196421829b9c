"""Partition folders (``dt=2026-05-01/``): their names, and their values as declared columns.

A folder ``key=value`` holds the rows with one value of a column. The result contains the column only if the schema
declares it, and then with the declared type. The value in the folder's name takes precedence over a column of the same
name in the files, as in Spark. Escaped characters (``%3A``) and ``__HIVE_DEFAULT_PARTITION__`` (null) have the same
meaning as in Hive.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epochal.errors import SchemaError, SourceError
from epochal.state.type_names import quoted, type_name
from epochal.tasks.reporting import MARKER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField, StructType

_MAGIC = frozenset("*?[")
_COPYING = "._COPYING_"
"""Suffix that ``hdfs dfs -put`` appends to the name of an incomplete file."""
_NULL = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = re.compile("%([0-9A-Fa-f]{2})")


def is_visible(name: str) -> bool:
    """Check whether a file of this name is data. Spark and Hive skip names that start with ``_`` or ``.``."""
    return not name.startswith(("_", ".")) and not name.endswith(_COPYING)


def is_partition(name: str) -> bool:
    """Check whether a folder of this name is a partition folder. As in Spark, ``_key=value`` is one."""
    key, equals, _ = name.partition("=")
    return bool(equals and key) and not name.startswith(".")


def is_read(name: str, recursive: bool) -> bool:
    """Check whether a source reads the files of a subfolder of this name."""
    return is_partition(name) or (recursive and is_visible(name))


def fixed_part(location: str) -> str:
    """The folders of a location before the first wildcard; the whole location if it has none."""
    if not _MAGIC & set(location):
        return location
    fixed = []
    for part in location.split("/"):
        if _MAGIC & set(part):
            break
        fixed.append(part)
    return "/".join(fixed) or "/"


@dataclass(frozen=True)
class Place:
    """Base folder of the partition folders of some files, and the folders' keys from the outermost inwards."""

    base: str
    keys: tuple[str, ...]


NOT_PARTITIONED = Place("", ())


@dataclass(frozen=True)
class Partitioning:
    """Selection of the partition folders that become columns. ``declared``: case-folded names of declared columns."""

    root: str
    declared: frozenset[str]

    @classmethod
    def of(cls, location: str, declared: Iterable[str]) -> Partitioning:
        return cls(fixed_part(location).rstrip("/"), frozenset(name.casefold() for name in declared))

    def place(self, path: str) -> Place:
        """The partition folders directly above a file. Raises ``SourceError`` if one key occurs twice."""
        if "=" not in path or not self.declared or not path.startswith(f"{self.root}/"):
            return NOT_PARTITIONED
        folders = path[len(self.root) + 1 :].split("/")[:-1]
        first = len(folders)
        while first and is_partition(folders[first - 1]):
            first -= 1
        keys = tuple(folder.partition("=")[0] for folder in folders[first:])
        folded = [key.casefold() for key in keys]
        if self.declared.isdisjoint(folded):
            return NOT_PARTITIONED
        if len(set(folded)) < len(folded):
            raise SourceError(f"{path} lies in two folders of the same key. Move it, or read it with recursive=True.")
        return Place("/".join([self.root, *folders[:first]]), keys)

    def places(self, paths: Iterable[str]) -> dict[Place, list[str]]:
        """Group the paths by place, preserving their order."""
        found: dict[Place, list[str]] = {}
        for path in paths:
            found.setdefault(self.place(path), []).append(path)
        return found


def folder_texts(path: str, keys: Sequence[str], chosen: Iterable[str]) -> dict[str, str | None]:
    """Unescaped values of the keys ``chosen``. ``keys`` lists all keys of the folders directly above the file."""
    folders = path.split("/")[-1 - len(keys) : -1]
    values = dict(zip(keys, (folder.partition("=")[2] for folder in folders), strict=True))
    return {key: None if values[key] == _NULL else _ESCAPED.sub(_character, values[key]) for key in chosen}


def _character(escaped: re.Match[str]) -> str:
    return chr(int(escaped[1], 16))


@dataclass(frozen=True)
class PartitionColumns:
    """A declared schema for the files of one place, split into columns of the files and columns of the folders.

    ``keys`` maps declared columns to folder keys. Readers return these columns as text, under the name of the key;
    :meth:`typed` converts them.
    """

    schema: StructType
    keys: dict[str, str]

    @classmethod
    def of(cls, schema: StructType, place: Place) -> PartitionColumns:
        """Split the schema. Raises ``SchemaError`` if the files have no column, or for a type without a text form."""
        keys = {key.casefold(): key for key in place.keys}
        found = cls(schema, {name: keys[name.casefold()] for name in schema.names if name.casefold() in keys})
        if found.keys and not found.files.names:
            raise SchemaError(
                f"The schema of {place.base} has columns of its folders only ({', '.join(found.keys)}). Declare at "
                "least one column of the files."
            )
        for field in schema.fields:
            if field.name in found.keys and not _has_text(field.dataType):
                raise SchemaError(
                    f"Column {field.name!r} of {place.base} is the name of folders and cannot be "
                    f"{type_name(field.dataType)}. Declare string, a number, boolean, date or timestamp."
                )
        return found

    @property
    def files(self) -> StructType:
        """The columns of the files."""
        return type(self.schema)([field for field in self.schema.fields if field.name not in self.keys])

    @property
    def texts(self) -> StructType:
        """The columns of the folders, as text."""
        from pyspark.sql.types import StringType, StructField, StructType

        return StructType([StructField(key, StringType()) for key in self.keys.values()])

    def typed(self, frame: DataFrame, file: Column, others: Collection[str] = ()) -> DataFrame:
        """The declared columns in order, then the columns ``others``. ``file``: path of a row's file, for messages."""
        import pyspark.sql.functions as F

        if not self.keys:
            return frame
        columns = []
        for field in self.schema.fields:
            column = F.col(quoted(self.keys.get(field.name, field.name)))
            if field.name in self.keys:
                value = column.try_cast(field.dataType)
                refused = F.raise_error(_complaint(field, column, file)).cast("boolean")
                # A filter, so that the check does not depend on the columns that the pipeline uses.
                frame = frame.where(F.when(column.isNotNull() & value.isNull(), refused).otherwise(F.lit(True)))
                column = value.alias(field.name)
            columns.append(column)
        return frame.select(*columns, *map(quoted, others))


def _has_text(type: DataType) -> bool:
    from pyspark.sql.types import BooleanType, DateType, NumericType, StringType, TimestampNTZType, TimestampType

    return isinstance(type, BooleanType | DateType | NumericType | StringType | TimestampNTZType | TimestampType)


def _complaint(field: StructField, text: Column, file: Column) -> Column:
    """The failure as one line of JSON, which the engine parses from Spark's exception."""
    import pyspark.sql.functions as F

    message = F.concat(
        F.lit(f"The folder of {field.name!r} is "),
        F.to_json(F.struct(text.alias("value"))),
        F.lit(", which is not of the declared type "),
        F.lit(f"{type_name(field.dataType)}: "),
        file,
        F.lit(" . Rename the folder, or declare string and convert the column in the pipeline."),
    )
    failure = F.to_json(F.struct(F.lit(SourceError.slug).alias("type"), message.alias("message")))
    return F.concat(F.lit(MARKER), failure)
