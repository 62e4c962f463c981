"""Certificates: the least KL(p || q) at which a drafted token can be rejected."""
