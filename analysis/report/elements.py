"""Where the elements of the papers stand in a report: one table, headed by the papers."""

from __future__ import annotations

import pkgutil
import tomllib
from collections.abc import Sequence
from functools import cache
from typing import Any

import pandas as pd

from .records import Section, Table, worded
from .render import names


@cache
def sources() -> list[dict[str, Any]]:
    """Return the title, study and elements of each paper, from `elements.toml`."""
    read = tomllib.loads((pkgutil.get_data(__package__, "elements.toml") or b"").decode())
    return list(read["source"])


def elements_section(sections: Sequence[Section]) -> Section:
    """Return the section with the file of each element; `sections` are all others."""
    paths = [f"{part.place}{names(item)[0]}" for part in sections for item in part.shown]
    made = {path.rpartition(".")[0]: path for path in paths}
    rows = []
    for source in sources():
        study = f"study={source['study']}"
        for element, wanted, *how in source["elements"]:
            files = ", ".join(made[name] for name in wanted.split() if name in made)
            missing = f"not in this study: {', '.join(how) or study}"
            rows.append({"source": source["title"], "element": element, "file": files or missing})
    shown = [Table(**worded("elements"), data=pd.DataFrame(rows))]
    return Section("Where the papers' elements are", shown)
