"""The internal API: what a driver asks of the control plane, with the token of its own attempt."""
