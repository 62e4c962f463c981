"""The store on disk: artifacts, their columns, and their identity."""
