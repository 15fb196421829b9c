"""HTTP: one module for each resource with its routes, and what all requests pass through."""
