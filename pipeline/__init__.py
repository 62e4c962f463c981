"""Everything that touches disk, models, devices or the clock; one module a stage."""
