"""Sources, tables and sinks that authors name: ``from epochal.connectors import files, nexmark, console``."""
