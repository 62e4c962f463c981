"""What is read: models and prompts on the hub or on disk, and artifacts of earlier stages."""
