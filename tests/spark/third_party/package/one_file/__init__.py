"""A sink that stores the rows of all epochs in one file, written by a third party against ``spi``."""

from one_file.sink import sink

__all__ = ["sink"]
