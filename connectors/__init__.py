"""Sources, tables and sinks of pipelines: ``from epochal.connectors import files, nexmark, console``."""
