"""What grows with what: the figures of ``make scale``."""
