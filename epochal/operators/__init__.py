"""Stateful operators: the contract that all of them keep, and one module for each kind."""
