"""The sink for Delta tables. Requires the package ``deltalake`` (``pip install 'epochal[delta]'``)."""
