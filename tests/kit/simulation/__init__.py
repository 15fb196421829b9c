"""A simulated cluster around the real coordinator: crashes, repeated tasks, late events, chosen by a seed."""
