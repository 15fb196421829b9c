"""One file that holds every epoch's rows: a sink as somebody else would write it, with what ``spi`` says."""

from one_file.sink import sink

__all__ = ["sink"]
