"""What the settings of an artifact are made from, and what its record's facts are read as."""
