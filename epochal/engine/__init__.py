"""Engine: runs a graph as a sequence of epochs, through the contracts only."""
