"""What lies on disk: artifacts, their columns, and what identifies them."""
