"""What every stage is made of: tasks, artifacts, shards, workers, files, errors."""
