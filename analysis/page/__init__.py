"""The page of a report: its data as plain JSON, and its charts as Vega-Lite specifications."""
