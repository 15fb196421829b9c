"""The queries 0 to 22 of the Nexmark benchmark, each as a pipeline; ``oracles`` has the expected results."""
