"""The preflight resource: routes -> service; what an upgrade would do, before it is done."""
