"""Background services: the one place that starts threads, repeats failed calls and locks files."""
