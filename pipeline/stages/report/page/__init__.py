"""One self-contained page: the report as people look at it.

`read` gives the steps, `build` the page from them and from what the report's other parts made.
The template, its style and its scripts lie in `web/`.
"""
