"""Avro values: converts rows to records of a schema, and back. One record per value, without file header or registry
id.

Needs the package ``fastavro`` (``pip install 'epochal[avro]'``).
"""
