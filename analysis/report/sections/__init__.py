"""The sections of a report: each module makes its tables and figures from what was measured."""
