"""Re-keying: another maximum parallelism, offline."""
