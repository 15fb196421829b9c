"""What authors say, before there is a graph: names, expressions, schemas, states, keyed functions."""
