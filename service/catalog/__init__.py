"""The SQL catalog: applications, branches, executions, epochs, and the requests of people and drivers for them."""
