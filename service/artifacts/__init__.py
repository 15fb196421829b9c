"""The artifacts resource: routes -> service -> repository."""
