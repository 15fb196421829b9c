"""The authoring API: pipelines, streams and their verbs; the graph, and its analysis."""
