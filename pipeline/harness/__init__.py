"""The decoding loop as a model of lm-evaluation-harness, an optional package (extra `harness`)."""
