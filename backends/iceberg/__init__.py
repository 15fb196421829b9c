"""The sink for Iceberg tables. Requires the package ``pyiceberg`` (``pip install 'epochal[iceberg]'``)."""
