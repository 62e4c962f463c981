"""From a configuration to the artifacts that are to be: the graph of stages."""
