"""Texts of the verdict: on an engine's log, on what a token costs, and as Markdown to paste."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from ..acceptance.guarantees import certified_by_greedy, guaranteed_per_call
from ..acceptance.target import Target
from ..decoding.metrics import CONFIGURED, Decoded
from ..decoding.verdict import UNTIMED
from .advice import Advice
from .results import ASSUMED_KL
from .table import Table
from .text import number_text, percent_text

DRAFT_LENGTHS = (1, 2, 4, 8)  # compared in the verdict on a log


def cost_sentence(decoded: Decoded, speeds: pd.DataFrame) -> str:
    """Return a line on what a token of the target alone costs, and a drafted token."""
    alone = speeds[speeds["drafter"] == "none"]
    drafted = speeds[speeds["drafter"] == CONFIGURED]
    text = (
        f"{decoded.target} alone: {alone['tokens_per_second'].iloc[0]:.3g} tokens per second, "
        f"{1000 * alone['per_token'].iloc[0]:.3g} ms per token"
    )
    if len(drafted):
        text += f"; {decoded.drafter}: {1000 * drafted['c_q'].iloc[0]:.3g} ms per drafted token"
    return f"{text}."


def verdict_text(advice: Sequence[Advice], methods: Table | None) -> str:
    """Return a paragraph for each target, and the table of methods in Markdown, to paste.

    Names are text: nothing in them makes a tag, a link or a cell.
    """
    blocks = []
    for of_target in advice:
        beside = [f"- {text}" for text in (*of_target.outlooks, *of_target.beside)]
        blocks.append("\n".join([of_target.sentence, *beside]))
    if methods is not None:
        flat = methods.cells.reset_index().rename(columns=str.lower)
        rows = [list(flat.columns), ["---"] * flat.shape[1], *flat.to_numpy().tolist()]
        cells = [[str(cell).replace("|", r"\|") for cell in row] for row in rows]
        blocks.append("\n".join(f"| {' | '.join(row)} |" for row in cells))
    return "\n\n".join(blocks).replace("<", r"\<").replace("](", r"]\(") + "\n"


def log_advice(target: Target) -> Advice:
    """Return the verdict on the target of an engine's log: what it tells, and what it can't."""
    relax = (
        "Should I relax? vLLM and llama.cpp run no relaxed rule: at temperature 0 they accept the "
        "target's first choice alone. SGLang, TensorRT-LLM, ROCm ATOM and Medusa have such rules; "
        "which setting certifies stands above."
    )
    draft_length = (
        "How long should drafts be? That depends on what a step costs, which no log tells. Ask the "
        "server with drafts and without (`python -m pipeline.ask URL`), then `python -m "
        "pipeline.engine alone.jsonl drafted.jsonl` says how much faster it is with drafts."
    )
    certified = certified_by_greedy(target, ASSUMED_KL)
    if certified is not None:
        tokens = {n: guaranteed_per_call(certified, target, n) for n in DRAFT_LENGTHS}
        if math.isnan(tokens[1]):
            draft_length += " No answer has a second token, so no tokens per call are guaranteed."
        else:
            each = ", ".join(f"{number_text(x)} for {n}" for n, x in tokens.items())
            draft_length += (
                " Guaranteed tokens per call by draft length, to a drafter within "
                f"{ASSUMED_KL:g} nats at every step: {each}."
            )
    sentence = f"{target.label} was logged without strict greedy among the rules."
    if certified is not None:
        sentence = (
            f"Strict greedy certifies {percent_text(float(certified.mean()))} of the steps of "
            f"{target.label}: there it accepts any drafter within {ASSUMED_KL:g} nats."
        )
    pays = (
        "Does drafting pay? A log does not tell: the cost of a step is missing. It tells how much "
        "drafter error the target tolerates."
    )
    return Advice(target.label, UNTIMED, sentence, [relax, draft_length, pays])
