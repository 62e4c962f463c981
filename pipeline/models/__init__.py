"""Language models: loading, caches, devices, vocabularies, statistics of their logits."""
