"""Table stopping: what tells a drafter, before the target is called, that it should stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .notes import few_notes
from .pairs import Pairs, rows_by
from .table import Cell, Section, Table
from .text import number_text, share_text

MEASURES = {
    "certified": "certificate C(q)",
    "certified_tv": "certificate of TV",
    "max_q": "largest probability q₀",
    "entropy": "entropy",
    "calibrated": "q₀, calibrated",
}
STATISTICS: dict[str, Callable[[float], str]] = {
    "kept": share_text,
    "precision": share_text,
    "recall": share_text,
    "tokens": number_text,
    "drafted": number_text,
    "wasted": number_text,
}


def stopping_table(pairs: Pairs) -> Table | None:
    """Rules for stopping a draft, beside each other; None where they were not computed."""
    frame = pairs.stopping
    if frame.empty:
        return None
    frame = frame.assign(at=frame["at"].fillna(-1.0))
    found = rows_by(frame, "target", "measure", "setting", "at", "statistic")
    settings = frame[frame["statistic"] == "kept"].drop_duplicates(["measure", "setting", "at"])

    def cells(measure: str, setting: str, at: float) -> list[Cell]:
        return [
            Cell(text(found[target, measure, setting, at, name]["value"]))
            for target in pairs.targets
            for name, text in STATISTICS.items()
        ]

    sections: dict[str, list[tuple[str, list[Cell]]]] = {}
    for row in settings.to_dict("records"):
        key = row["measure"], row["setting"], row["at"]
        heading, name = _named(*key)
        sections.setdefault(heading, []).append((name, cells(*key)))
    covered = [
        f"{MEASURES[measure]}, {share_text(at)}: "
        + " / ".join(
            share_text(found[target, measure, "share", at, "covered"]["value"])
            for target in pairs.targets
        )
        for measure, setting, at in settings[["measure", "setting", "at"]].itertuples(index=False)
        if setting == "share"
    ]
    return Table.side_by_side(
        "stopping",
        "When a drafter should stop",
        f"{pairs.drafter} drafts under strict greedy as long as it is confident enough, by what it "
        "knows before the target is called. Certified: its certificate exceeds the KL, or total "
        "variation, that, on other prompts, all but few stay within at the given share of their "
        "steps; q₀ and entropy with the thresholds that draft as often there; and with thresholds "
        "of engines: transformers stops below q₀ = 0.4, llama.cpp below 0.75; vLLM's adaptive "
        "verification (#52228) calibrates the log-odds of q₀. Drafts: share of the steps at which "
        "it drafts; precision: accepted among them; recall: drafted among accepted; then tokens, "
        "drafted and wasted (rejected or after a rejection) a call of the target.",
        "Stops by",
        pairs.targets,
        ["drafts", *list(STATISTICS)[1:]],
        [Section(heading, rows) for heading, rows in sections.items()],
        frame[frame["setting"] != ""],
        [f"Share of prompts that kept to their level. {'; '.join(covered)}.", *_few(pairs)],
    )


def confidence_table(pairs: Pairs) -> Table | None:
    """How well each measure predicts acceptance, by depth; None where it was not computed."""
    frame = pairs.stopping
    if frame.empty:
        return None
    frame = frame[frame["setting"] == ""]
    found = rows_by(frame, "target", "measure", "depth", "statistic")
    depths = sorted(frame["depth"].unique())

    def cells(measure: str, statistic: str) -> list[Cell]:
        return [
            Cell(number_text(_value(found, target, measure, depth, statistic), 3))
            for target in pairs.targets
            for depth in depths
        ]

    titles = {"auc": "AUC", "brier": "Brier score"}
    return Table.side_by_side(
        "confidence",
        "What a drafter knows of its acceptance",
        f"How well {pairs.drafter} predicts, before the target is called, that strict greedy "
        "accepts a token, over the tokens that are tested in drafts of the whole length, all of "
        "them and by their depth in the draft. AUC: how often an accepted token has the larger "
        "measure than a rejected one, ties half. Brier score: mean square of probability less "
        "outcome; q₀ is its own probability, the others are fitted on other prompts by a logistic "
        "function.",
        "Measure",
        pairs.targets,
        [("all" if depth == 0 else f"depth {depth}") for depth in depths],
        [
            Section(title, [(shown, cells(name, statistic)) for name, shown in MEASURES.items()])
            for statistic, title in titles.items()
        ],
        frame,
        _few(pairs),
    )


def _value(
    found: dict[tuple[Any, ...], dict[Any, Any]], target: str, measure: str, depth: int, name: str
) -> float:
    row = found.get((target, measure, depth, name))
    return float("nan") if row is None else float(row["value"])


def _few(pairs: Pairs) -> list[str]:
    return few_notes(pairs.stopping["prompts"])


def _named(measure: str, setting: str, at: float) -> tuple[str, str]:
    """Return the heading and the name of a row."""
    name = MEASURES.get(measure, "never: drafts of the whole length")
    if setting == "whole":
        return "", name
    if setting == "threshold":
        return "With a threshold of its own", f"{name} ≤ {at:g}"
    return f"Level of {share_text(at)} of a prompt's steps", name
