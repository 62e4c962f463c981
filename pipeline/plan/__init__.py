"""Plans which artifacts a configuration needs: the graph of stages."""
