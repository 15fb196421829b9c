"""Methods of Spark's Column class as SQL operators, by method name."""

from __future__ import annotations

from typing import Final

BINARY: Final = {
    "__add__": "+",
    "__sub__": "-",
    "__mul__": "*",
    "__truediv__": "/",
    "__mod__": "%",
    "__and__": "AND",
    "__or__": "OR",
    "__eq__": "=",
    "__ne__": "!=",
    "__lt__": "<",
    "__le__": "<=",
    "__gt__": ">",
    "__ge__": ">=",
}
UNARY: Final = {
    "__invert__": "(NOT {})",
    "__neg__": "(- {})",
    "isNull": "({} IS NULL)",
    "isNotNull": "({} IS NOT NULL)",
}
