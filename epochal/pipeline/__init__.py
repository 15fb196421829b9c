"""What authors import: `Pipeline`, streams, states, aggregates; the graph; artifacts, parameters; analysis."""
