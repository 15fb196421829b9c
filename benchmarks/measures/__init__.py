"""One module per measure; each has ``run(folder) -> list[Result]`` and is run in a process of its own."""
