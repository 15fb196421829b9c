"""Drivers' logs: one file per attempt, tailed and followed over HTTP."""
