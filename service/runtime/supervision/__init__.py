"""The supervisor: reconciles the running drivers with the executions in the catalog."""
