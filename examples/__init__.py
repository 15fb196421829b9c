"""Examples that run: each folder is one application, its data and a script that shows it."""
