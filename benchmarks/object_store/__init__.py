"""Measures of snapshots in S3, behind a proxy that counts and delays requests."""
