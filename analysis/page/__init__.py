"""The page of a report: its data as plain JSON."""
