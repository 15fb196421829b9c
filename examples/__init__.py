"""Runnable examples. Each folder has an application, its data and a demo script."""
