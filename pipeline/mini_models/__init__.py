"""The embedded models: corpus, training and export (``make mini-models``)."""
