"""Language models: loading, caches, devices, vocabularies and what is kept of their logits."""
