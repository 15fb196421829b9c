"""The bytes of keys and values in local stores: what :class:`epochal.contracts.state.StateView` speaks.

Deltas and bases are typed Parquet; these bytes live only in caches, which are rebuilt at will, so their form may change
from version to version.
"""

from epochal.state.key_codec import KeyCodec
from epochal.state.row_codec import RowCodec

__all__ = ["KeyCodec", "RowCodec"]
