"""One module for each measure with a function ``run(folder) -> list[Result]``, called in a separate process."""
