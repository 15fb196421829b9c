"""The SQL catalog: applications, branches, executions, epochs and what people and drivers ask of them."""
