"""The configuration: YAML values, and their types and ranges in `conf.schema`."""
