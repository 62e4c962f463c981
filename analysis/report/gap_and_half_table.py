"""The table of a target's steps by logit gap, and by half of the answer."""

from __future__ import annotations

from .results import Results
from .table import Table, cells_to_grid
from .text import decimals, share_texts

BY = {"margin": "log p₀ − log p₁, nats", "position": "half of the answer"}
STATISTICS = {  # in the order of the table's rows
    "share": "of all steps",
    "acceptance": "accepted",
    "certified": "certified",
    "median": "median R, nats",
}


def gap_and_half_table(results: Results) -> Table:
    """Return the table of `part_statistics`.

    It has the size of each part and, for each rule, the accepted and certified shares with a
    drafter, the median certificate without one.
    """
    data = results["parts"]
    order = list(STATISTICS).index
    printed_rows = data.sort_values("statistic", key=lambda names: names.map(order), kind="stable")
    digits = decimals(printed_rows.loc[printed_rows["statistic"] == "median", "value"])
    cells = share_texts(printed_rows, {"median": digits})
    table = cells_to_grid(printed_rows, ["statistic", "rule"], ["target", "by", "part"], cells)
    what = "median certificate R, the ceiling where nothing fails"
    if results.drafter:
        what = f"accepted for {results.drafter} and certified at its KL(p‖q)"
    return Table(
        "parts",
        "By logit gap and by position in the answer",
        f"Steps by the target's logit gap log p₀ − log p₁, and in the first and second half of its "
        f"answers: {what}. A relaxed rule helps where its row exceeds that of strict greedy.",
        data,
        table.rename(index=STATISTICS, level=0)
        .rename(index={**results.titles, "": ""}, level=1)
        .rename(columns=BY, level="by")
        .rename_axis(index=["", "Rule"]),
    )
