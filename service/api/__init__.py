"""HTTP API: one module with routes for each resource, and the middleware of all requests."""
