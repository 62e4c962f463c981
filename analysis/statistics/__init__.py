"""Statistics over prompts: the bootstrap, and run lengths."""
