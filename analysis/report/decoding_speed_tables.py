"""Tables of the speed of decoding with a drafter: all that depends on the clock.

The method comparison is laid out as Table 1 of MARS (arXiv 2601.15498), with agreement with the
baseline's tokens in the place of task accuracy. Tables over temperature and draft length are in
`analysis.report.decoding_settings`. `speeds` holds `analysis.decoding.speed.speed` of each target.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from ..decoding import speed
from ..decoding.metrics import Decoded
from ..statistics.bootstrap import few
from .decoding_tables import method_sections, setting_texts, together
from .notes import few_notes
from .table import Cell, Section, Table
from .text import UNDEFINED, number_text, share_text

WALL_CLOCK = (
    "Wall-clock time of batch size 1 on one machine; every method decoded the same "
    "prompts in turn with its baseline. Speedup: the baseline's seconds a token over "
    "the method's, the pass over the prompt included."
)


def comparison_table(decoded: Sequence[Decoded], speeds: Sequence[pd.DataFrame]) -> Table:
    """Speedup and τ by source of the prompts, with their mean."""
    sources = sorted({source for one in decoded for source in one.data["source"]})
    frames, sections = [], []
    for one, table in zip(decoded, speeds, strict=True):
        parts = [_of_source(one, source) for source in sources]
        rows = []
        for run, (_, row) in enumerate(table.iterrows()):
            texts = setting_texts(row)
            for part in parts:
                texts += [times(part["speedup"].iloc[run]), number_text(part["tau"].iloc[run])]
            interval = f"[{row['ci_low']:.2f}, {row['ci_high']:.2f}]"
            texts += [f"{times(row['speedup'])} {interval}", number_text(row["tokens_per_call"])]
            rows.append((row["method"], [*map(Cell, texts)]))
        sections.append(Section(one.target, rows))
        whole = table[["speedup", "ci_low", "ci_high"]].assign(tau=table["tokens_per_call"])
        counted = {"prompts": one.prompts, "few_prompts": few(one.prompts)}
        settings = one.runs[["method", "draft_length", "temperature"]].assign(**counted)
        frames += [
            settings.join(part).reset_index(names="run").assign(target=one.target, source=source)
            for source, part in zip([*sources, "all"], [*parts, whole], strict=True)
        ]
    return Table(
        "decoding_comparison",
        "Methods compared",
        f"Speedup and tokens a target call (τ) by source of the prompts. "
        f"{WALL_CLOCK} Brackets: interval over prompts.",
        "Method",
        [("", 2), *((source, 2) for source in sources), ("all", 2)],
        ["γ", "T", *["speedup", "τ"] * (len(sources) + 1)],
        sections,
        pd.concat(frames, ignore_index=True),
        few_notes(one.prompts for one in decoded),
    )


def _of_source(one: Decoded, source: str) -> pd.DataFrame:
    """Return speedup and τ of every run on the prompts of a source; NaN without one."""
    prompts = list(one.data.loc[one.data["source"] == source, "prompt_id"].unique())
    if not prompts:
        return pd.DataFrame({"speedup": math.nan, "tau": math.nan}, index=one.runs.index)
    calls = one.calls[one.calls["prompt_id"].isin(prompts)].groupby("run")["emitted"]
    found = speed.speedups(one, 1, 0.5, 0, prompts)[["speedup"]]
    return found.assign(tau=calls.mean())


def cost_table(decoded: Sequence[Decoded], speeds: Sequence[pd.DataFrame]) -> Table:
    """Costs of a call and the speedups they predict."""

    def texts(row: pd.Series) -> list[str]:
        return [
            *setting_texts(row),
            *(_milliseconds(row[name]) for name in ("c_draft", "c_verify", "c_other")),
            number_text(row["rho"], 3),
            number_text(row["verify_ratio"]),
            *(times(row[name]) for name in ("predicted", "predicted_costs", "speedup")),
        ]

    costs = ["draft", "verify", "other", "ρ", "verify/c_p"]
    return Table(
        "decoding_costs",
        "Costs, and the speedups they predict",
        "Where the time of a target call goes, means: drafting; the target's pass that verifies; "
        "the law, the roll-back and the rest. c_p: what a token costs the target alone, pass and "
        "choice; ρ = c_q/c_p, c_q what a drafted token costs, pass and choice; verify/c_p: pass "
        "and law. Predicted: τ/(1 + dρ), d the tokens drafted a call, which takes a verification "
        "for a token of the target alone; from costs: τ c_p over all that a call costs. Both "
        f"leave out the passes over the prompt. {WALL_CLOCK}",
        "Method",
        [("", 2), ("milliseconds", 3), ("ratios", 2), ("speedup", 3)],
        ["γ", "T", *costs, "predicted", "from costs", "measured"],
        method_sections(decoded, speeds, texts),
        together(decoded, speeds),
    )


def latency_table(decoded: Sequence[Decoded], speeds: Sequence[pd.DataFrame]) -> Table:
    """What a reader of the answer sees."""

    def texts(row: pd.Series) -> list[str]:
        return [
            *setting_texts(row),
            number_text(row["tokens_per_second"], 1),
            _milliseconds(row["first_token"]),
            _milliseconds(row["tpot"]),
            f"{times(row['tpot_speedup'])} [{row['tpot_ci_low']:.2f}, {row['tpot_ci_high']:.2f}]",
            *(_milliseconds(row[f"itl_{level}"]) for level in (50, 95, 99)),
            share_text(row["itl_zero"]),
            number_text(row["memory"] / 2**20, 1),
        ]

    gaps = ["50 %", "95 %", "99 %"]
    return Table(
        "decoding_latency",
        "Throughput, latency, memory",
        "Throughput, time to the first token (median), time per output token after it (TPOT) and "
        "how many times as fast as the baseline that is, with its interval over prompts: what a "
        "long answer gains, whatever its prompt takes. The time between tokens (percentiles), the "
        "share of tokens that arrive together with the one before, and the memory needed beside "
        "the target: the drafter's weights and, on CUDA, the difference "
        f"of the measured peaks, elsewhere its cache. {WALL_CLOCK}",
        "Method",
        [("", 4), ("after the first", 2), ("between tokens, ms", 3), ("", 2)],
        ["γ", "T", "tokens/s", "first, ms", "ms", "speedup", *gaps, "at once", "MiB"],
        method_sections(decoded, speeds, texts),
        together(decoded, speeds),
    )


def times(value: float) -> str:
    """Return a speedup as printed."""
    return UNDEFINED if math.isnan(value) else f"{value:.2f}×"


def _milliseconds(value: float) -> str:
    return number_text(1000 * value)
