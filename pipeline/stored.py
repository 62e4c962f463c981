"""The name that notebooks of version 1.0 import `pipeline.inputs.artifact_readers` by."""

from pipeline.inputs.artifact_readers import read_distributions, read_steps, resampled

__all__ = ["read_distributions", "read_steps", "resampled"]
