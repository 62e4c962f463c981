"""One self-contained page: the report as people look at it.

`build` puts it together from the steps and from what the report's other parts made.
The template, its style and its scripts lie in `web/`.
"""
