"""The data of a report's page, as plain JSON."""
