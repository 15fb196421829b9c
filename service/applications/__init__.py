"""Applications: registered, started, stopped, forked and deleted."""
