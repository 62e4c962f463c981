"""The stages: one module or package each, which meet through artifacts only."""
