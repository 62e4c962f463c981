"""The sentence and table at the top of a study of draft trees: their tokens per call.

Such a study is not about speed: no engine runs its trees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ..decoding.metrics import Decoded
from ..statistics.estimate import Estimate
from .table import Table, concat_targets, rows_by_method
from .text import UNDEFINED, estimate_text, estimate_texts, number_text, percent_text

COLUMNS = ["method", "draft_length", "temperature", "lossless", "tree"]


def tree_study_methods(decoded: Decoded, accepted: pd.DataFrame) -> pd.DataFrame:
    """Return the methods at the highest temperature that draft; no row if none drafts trees.

    `accepted` is the table of `analysis.decoding.metrics.acceptance`. The added column `tree` says
    whether a method drafts trees; a tree with one child per level counts as a chain.
    """
    is_tree = [shape is not None and shape["name"] != "sequence" for shape in decoded.runs["tree"]]
    methods = accepted.assign(tree=is_tree)
    methods = methods[methods["draft_length"] > 0]
    if not methods["tree"].any():
        return methods.iloc[:0]
    at_highest: pd.DataFrame = methods[methods["temperature"] == methods["temperature"].max()]
    return at_highest


def tree_sentence(decoded: Decoded, accepted: pd.DataFrame) -> str:
    """Return a sentence on the most tokens per call of trees, chains and lossy methods."""
    methods = tree_study_methods(decoded, accepted)
    if methods.empty:
        return ""
    is_lossless = methods["lossless"].astype(bool)
    kinds = {
        "the best lossless tree gives": methods[is_lossless & methods["tree"]],
        "the best lossless chain": methods[is_lossless & ~methods["tree"]],
        "the best method that changes the text": methods[~is_lossless],
    }
    parts: list[str] = []
    for words, of_kind in kinds.items():
        if len(of_kind):
            best = of_kind.sort_values("tokens_per_call").to_dict("records")[-1]
            tokens = estimate_text(Estimate.read(best, "tokens_per_call"))
            unit = "" if parts else " tokens per call"
            parts.append(f"{words} {tokens}{unit} ({_named(best)})")
    temperature = methods["temperature"].iloc[0]
    return (
        f"{decoded.target} with {decoded.drafter}, temperature {temperature:g}: {'; '.join(parts)}."
    )


def _named(run: Mapping[Any, Any]) -> str:
    return f"{run['method']}, γ = {run['draft_length']}"


def tree_summary(decoded: Sequence[Decoded], accepted: Sequence[pd.DataFrame]) -> Table | None:
    """Return tokens per call of all methods; None if no method drafts trees.

    Where a method changes the text, also the agreement of all, and the nats that it gives up.
    """
    data = concat_targets(
        (pair.target, tree_study_methods(pair, table))
        for pair, table in zip(decoded, accepted, strict=True)
    )
    if data.empty:
        return None
    is_lossless = data["lossless"].astype(bool)
    columns: dict[str, Any] = {
        "γ": data["draft_length"].map(str),
        "drafted per call": data["drafted_per_call"].map("{:.1f}".format),
        "tokens per call": estimate_texts(Estimate.read(data, "tokens_per_call")),
    }
    caption = (
        "Tokens per call of the target, at the study's highest temperature; brackets are intervals "
        "over prompts. γ: depth of a draft. These numbers belong to the models; how fast a tree is "
        "depends on an engine that runs it, and vLLM and llama.cpp run none of these."
    )
    if not is_lossless.all():
        given_up = data["nats_given_up"].mask(is_lossless)
        columns["same tokens"] = data["agreement"].map(percent_text)
        columns["nats given up"] = [number_text(nats, 3) for nats in given_up]
        caption += (
            " Same tokens: positions with the token of the target alone; sampled answers part "
            "early, those of a lossless method as well where it draws other random numbers. Nats "
            "given up: log-probability per token below that of the target's own answers "
            f"({UNDEFINED}: the method is lossless); negative where a rule prefers probable "
            "tokens, so that its text is no sample of the target's distribution."
        )
    ends = [f"tokens_per_call_{end}" for end in ("ci_low", "ci_high")]
    numbers = ["drafted_per_call", "tokens_per_call", *ends, "agreement", "nats_given_up"]
    return Table(
        "tree_answer",
        "Tokens per call of trees and chains",
        caption,
        data[["target", *COLUMNS, *numbers]],
        rows_by_method(data, columns),
    )
