"""The sections of a report: each module makes the tables and figures of one subject."""
