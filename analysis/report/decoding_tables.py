"""Tables of decoding with a drafter that do not depend on the clock.

Those that do are in `analysis.report.decoding_speed_tables`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pandas as pd

from ..decoding import metrics as decoding
from ..decoding.metrics import Decoded
from ..statistics.bootstrap import few
from .notes import few_notes
from .table import Cell, Section, Table
from .text import UNDEFINED, digits_text, number_text, share_text


def acceptance_table(
    decoded: Sequence[Decoded], resamples: int, confidence: float, seed: int
) -> Table:
    """What is accepted, how many tokens a call emits, and what a lossy rule gives up."""
    statistics = (resamples, confidence, seed)
    frames = [
        decoding.acceptance(one)
        .join(decoding.acceptance_intervals(one, *statistics))
        .assign(prompts=one.prompts, few_prompts=few(one.prompts))
        for one in decoded
    ]

    def texts(row: pd.Series) -> list[str]:
        return [
            *setting_texts(row),
            number_text(row["rate"], 3),
            number_text(row["drafted_per_call"]),
            number_text(row["tokens_per_call"]),
            number_text(row["closed_form"] if row["draft_length"] else math.nan),
            share_text(row["agreement"]),
            digits_text(row["given_up"]),
        ]

    return Table(
        "decoding_acceptance",
        "What is accepted, and what is given up",
        "Decoding with a drafter. Acceptance rate a: accepted over tested tokens, pooled (tokens "
        "behind a rejection and bonus tokens are never tested). τ: tokens emitted by a target "
        "call; drafted: tokens a call drafts, below γ near the limit of an answer and where "
        "look-up finds less. Closed form: the mean over calls of (1 − aⁿ⁺¹)/(1 − a), what τ "
        "would be were tests independent, n the drafted tokens before one that ends the "
        "answer. Agreement: share of positions with the token of autoregressive "
        "decoding. Given up: log-likelihood of a token under the target that the answers lose, "
        "in nats.",
        "Method",
        [("", 8)],
        ["γ", "T", "a", "drafted", "τ", "closed form", "agreement", "given up"],
        method_sections(decoded, frames, texts),
        together(decoded, frames),
        [
            f"The CSV file has {100 * confidence:g} % intervals over prompts of a and τ.",
            "Above temperature 0 two answers of the same law need not agree; agreement and given "
            "up then show noise as well. Races are compared with the target alone that chooses by "
            "the same race, and agree with it token for token, near-ties of the logits aside.",
            *few_notes(one.prompts for one in decoded),
        ],
    )


def forced_table(decoded: Sequence[Decoded]) -> Table:
    """Realised beside teacher-forced acceptance."""
    frames = [decoding.forced(one) for one in decoded]
    columns = ("teacher_forced", "on_baseline", "realised")

    def texts(row: pd.Series) -> list[str]:
        return [str(row["draft_length"]), *(number_text(row[name], 3) for name in columns)]

    return Table(
        "decoding_forced",
        "Teacher-forced and realised acceptance",
        "Teacher-forced and realised acceptance at temperature 0. Teacher-forced: share of all "
        "steps of the greedy answers at which the rule accepts the drafter's token. On the "
        "baseline: realised, before the answer parts from the greedy one; it differs because "
        "bonus positions are never tested. Realised: over whole answers; a relaxed rule's "
        "answers leave the baseline's, and what follows is another text.",
        "Method",
        [("", 4)],
        ["γ", "teacher-forced", "on the baseline", "realised"],
        method_sections(decoded, frames, texts),
        together(decoded, frames),
    )


def places_table(decoded: Sequence[Decoded]) -> Table:
    """How often the token at each place of a draft is accepted."""
    return _by_number(
        decoded,
        [decoding.position_rates(one.calls) for one in decoded],
        "place",
        "rate",
        "decoding_rates",
        "Acceptance by place in the draft",
        "Acceptance rate at each place of a draft: accepted among the tokens tested there. The CSV "
        "file has their numbers.",
    )


def histogram_table(decoded: Sequence[Decoded]) -> Table:
    """How many tokens calls accept."""
    return _by_number(
        decoded,
        [decoding.length_histogram(one.calls) for one in decoded],
        "accepted",
        "share",
        "decoding_histogram",
        "Acceptance lengths",
        "Acceptance lengths: share of calls that accept so many drafted tokens. The CSV file has "
        "the numbers of calls.",
    )


def _by_number(
    decoded: Sequence[Decoded],
    frames: Sequence[pd.DataFrame],
    number: str,
    value: str,
    name: str,
    title: str,
    caption: str,
) -> Table:
    """Return a table of `value` with a line for each run that drafts and a column a `number`."""
    settings = ["method", "draft_length", "temperature"]
    kept = [
        frame.join(one.runs[settings], on="run").query("draft_length > 0")
        for one, frame in zip(decoded, frames, strict=True)
    ]
    data = together(decoded, kept)
    numbers = sorted(data[number].unique())
    sections = []
    for one, frame in zip(decoded, kept, strict=True):
        wide = frame.pivot(index="run", columns=number, values=value).reindex(columns=numbers)
        rows = []
        for run, values in zip(wide.index.tolist(), wide.to_numpy(), strict=True):
            row = one.runs.iloc[run]
            texts = ["" if math.isnan(x) else share_text(x) for x in values]
            rows.append((row["method"], [*map(Cell, [*setting_texts(row), *texts])]))
        sections.append(Section(one.target, rows))
    groups = [("", 2), ("place in the draft" if number == "place" else "tokens", len(numbers))]
    columns = ["γ", "T", *map(str, numbers)]
    return Table(name, title, caption, "Method", groups, columns, sections, data)


def method_sections(
    decoded: Sequence[Decoded],
    frames: Sequence[pd.DataFrame],
    texts: Callable[[pd.Series], Sequence[str]],
) -> list[Section]:
    """Return a section a target, with a line for each row of its frame, named by its method."""
    return [
        Section(
            one.target, [(row["method"], [*map(Cell, texts(row))]) for _, row in frame.iterrows()]
        )
        for one, frame in zip(decoded, frames, strict=True)
    ]


def together(decoded: Sequence[Decoded], frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the frames of all targets as one, with the target's printed name."""
    return pd.concat(
        [frame.assign(target=one.target) for one, frame in zip(decoded, frames, strict=True)],
        ignore_index=True,
    )


def setting_texts(row: pd.Series) -> list[str]:
    """Return draft length and temperature of a run as printed."""
    gamma = int(row["draft_length"])
    return [str(gamma) if gamma else UNDEFINED, f"{row['temperature']:g}"]
