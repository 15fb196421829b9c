"""The queries of the Nexmark benchmark, 0 to 22: a pipeline each, and in ``oracles`` what it has to give."""
