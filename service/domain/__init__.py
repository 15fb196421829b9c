"""Typed values and pure rules of the control plane. No SQL, no HTTP, no threads."""
