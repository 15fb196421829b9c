"""The borders of the core: what the layers above implement and the engine calls.

Nothing here does I/O. ``backends/spi.py`` and ``connectors`` show these contracts to implementers under the names they
import; the engine imports them from here, so that the core never imports upward.
"""
