"""Executions and their attempts: what runs, with which right to write."""
