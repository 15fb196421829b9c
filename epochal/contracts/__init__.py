"""Interfaces of the core that upper layers implement and the engine calls.

No module here does I/O. ``backends/spi.py`` and ``connectors`` export these contracts to implementers; the engine
imports them from here, so that the core never imports upward.
"""
