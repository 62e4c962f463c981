"""Tables of decoding with a drafter; those that depend on the clock are apart.

Layouts: method comparison and temperature x draft length as in Tables 1 and 2 of MARS
(arXiv 2601.15498), with agreement with the baseline's tokens in the place of task accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from analysis import decoding, speed_laws
from analysis.decoding import Decoded
from analysis.layout import Cell, Section, Table
from analysis.printing import UNDEFINED, share_text

# expected tokens a call by acceptance rate, (1 - a^(gamma+1)) / (1 - a), as printed elsewhere
KNOWN_LENGTHS = (3, 5, 7, 10)
KNOWN_TOKENS = {
    0.5: (1.88, 1.97, 1.99, 2.00),
    0.7: (2.53, 2.94, 3.14, 3.27),
    0.8: (2.95, 3.69, 4.16, 4.57),
    0.9: (3.44, 4.69, 5.70, 6.86),
    0.95: (3.71, 5.30, 6.73, 8.62),
}
WALL_CLOCK = (
    "Wall-clock time of batch size 1 on one machine; every method decoded the same "
    "prompts in turn with its baseline. Speedup: the baseline's seconds a token over "
    "the method's, the pass over the prompt included."
)


def content_tables(decoded: Sequence[Decoded]) -> list[Table]:
    """Return the tables that do not depend on the clock."""
    return [acceptance_table(decoded), forced_table(decoded), tokens_table(decoded)]


def timing_tables(decoded: Sequence[Decoded], speeds: Sequence[pd.DataFrame]) -> list[Table]:
    """Return the tables of speed; `speeds` holds `analysis.decoding.speed` of each."""
    tables = [
        comparison_table(decoded, speeds),
        cost_table(decoded, speeds),
        latency_table(decoded, speeds),
        temperature_table(decoded, speeds),
        length_table(decoded, speeds),
    ]
    return [table for table in tables if table is not None]


def acceptance_table(decoded: Sequence[Decoded]) -> Table:
    """What is accepted, how many tokens a call emits, and what a lossy rule gives up."""
    frames = [decoding.acceptance(one).assign(target=one.target) for one in decoded]

    def cells(row: pd.Series) -> list[Cell]:
        return [
            *_setting(row),
            _number(row["rate"]),
            _number(row["tokens_per_call"], 2),
            _number(row["closed_form"] if row["drafter"] == "model" else math.nan, 2),
            Cell(share_text(row["agreement"])),
            _number(row["given_up"], 4),
        ]

    return Table(
        "decoding_acceptance",
        "Decoding with a drafter. Acceptance rate a: accepted over tested tokens, pooled (tokens "
        "behind a rejection and bonus tokens are never tested). τ: tokens emitted by a target "
        "call. Closed form: (1 − aᵞ⁺¹)/(1 − a), what τ would be were tests independent "
        "and every draft of length γ (look-up often finds less). "
        "Agreement: share of positions with the token of autoregressive decoding. Given up: "
        "log-likelihood of a token under the target that the answers lose, in nats.",
        "Method",
        [("", 7)],
        ["γ", "T", "a", "τ", "closed form", "agreement", "given up"],
        [
            Section(one.target, [(row["method"], cells(row)) for _, row in frame.iterrows()])
            for one, frame in zip(decoded, frames, strict=True)
        ],
        [
            "Above temperature 0 two answers of the same law need not agree; agreement and given "
            "up then show noise as well."
        ],
        pd.concat(frames, ignore_index=True),
    )


def forced_table(decoded: Sequence[Decoded]) -> Table:
    """Realised beside teacher-forced acceptance."""
    frames = [decoding.forced(one).assign(target=one.target) for one in decoded]
    columns = ("teacher_forced", "on_baseline", "realised")
    return Table(
        "decoding_forced",
        "Teacher-forced and realised acceptance at temperature 0. Teacher-forced: share of all "
        "steps of the greedy answers at which the rule accepts the drafter's token. On the "
        "baseline: realised, before the answer parts from the greedy one; it differs because "
        "bonus positions are never tested. Realised: over whole answers; a relaxed rule's "
        "answers leave the baseline's, and what follows is another text.",
        "Method",
        [("", 4)],
        ["γ", "teacher-forced", "on the baseline", "realised"],
        [
            Section(
                one.target,
                [
                    (
                        row["method"],
                        [Cell(str(row["draft_length"])), *(_number(row[name]) for name in columns)],
                    )
                    for _, row in frame.iterrows()
                ],
            )
            for one, frame in zip(decoded, frames, strict=True)
        ],
        [],
        pd.concat(frames, ignore_index=True),
    )


def tokens_table(decoded: Sequence[Decoded]) -> Table:
    """The closed form over acceptance rates and draft lengths, beside what was measured."""
    sections = [
        Section(
            "expected at a",
            [
                (
                    f"a = {a:g}",
                    [
                        Cell(f"{speed_laws.tokens_per_call(a, gamma):.2f}", f"{known:.2f}")
                        for gamma, known in zip(KNOWN_LENGTHS, row, strict=True)
                    ],
                )
                for a, row in KNOWN_TOKENS.items()
            ],
        )
    ]
    rows = [
        (a, gamma, speed_laws.tokens_per_call(a, gamma), known)
        for a, row in KNOWN_TOKENS.items()
        for gamma, known in zip(KNOWN_LENGTHS, row, strict=True)
    ]
    for one in decoded:
        found = decoding.acceptance(one)
        measured = []
        for (method, temperature), group in found[found["draft_length"] > 0].groupby(
            ["method", "temperature"], sort=False
        ):
            by_length = group.set_index("draft_length")["tokens_per_call"]
            cells = [_number(by_length.get(gamma, math.nan), 2) for gamma in KNOWN_LENGTHS]
            if any(cell.text != UNDEFINED for cell in cells):
                rate = group["accepted"].sum() / group["tested"].sum()
                measured.append((f"{method}, T = {temperature:g}, a = {rate:.2f}", cells))
        sections.append(Section(f"measured, {one.target}", measured))
    return Table(
        "decoding_tokens",
        "Tokens emitted by a target call, by draft length γ: expected under "
        "independent tests with acceptance rate a, and measured. For low a a longer draft gains "
        "little.",
        "",
        [("γ", len(KNOWN_LENGTHS))],
        [str(gamma) for gamma in KNOWN_LENGTHS],
        sections,
        [],
        pd.DataFrame(rows, columns=["a", "draft_length", "expected", "published"]),
    )


def comparison_table(decoded: Sequence[Decoded], speeds: Sequence[pd.DataFrame]) -> Table:
    """Speedup and τ by source of the prompts, with their mean."""
    sources = sorted({source for one in decoded for source in one.data["source"]})
    frames, sections = [], []
    for one, table in zip(decoded, speeds, strict=True):
        parts = {source: _of_source(one, source) for source in sources}
        rows = []
        for run, (_, row) in enumerate(table.iterrows()):
            cells = [*_setting(row)]
            for part in parts.values():
                cells += [_times(part["speedup"].iloc[run]), _number(part["tau"].iloc[run], 2)]
            interval = f" [{row['low']:.2f}, {row['high']:.2f}]"
            cells += [
                Cell(_times(row["speedup"]).text + interval),
                _number(row["tokens_per_call"], 2),
            ]
            rows.append((row["method"], cells))
        sections.append(Section(one.target, rows))
        frames += [
            part.reset_index(names="run").assign(target=one.target, source=source)
            for source, part in parts.items()
        ]
    return Table(
        "decoding_comparison",
        f"Speedup and tokens a target call (τ) by source of the prompts. "
        f"{WALL_CLOCK} Brackets: interval over prompts.",
        "Method",
        [("", 2), *((source, 2) for source in sources), ("all", 2)],
        ["γ", "T", *["speedup", "τ"] * (len(sources) + 1)],
        sections,
        [],
        pd.concat(frames, ignore_index=True),
    )


def _of_source(one: Decoded, source: str) -> pd.DataFrame:
    """Return speedup and τ of every run on the prompts of a source; NaN without one."""
    prompts = list(one.data.loc[one.data["source"] == source, "prompt_id"].unique())
    if not prompts:
        return pd.DataFrame({"speedup": math.nan, "tau": math.nan}, index=one.runs.index)
    calls = one.calls[one.calls["prompt_id"].isin(prompts)].groupby("run")["emitted"]
    found = decoding.speedups(one, 1, 0.5, 0, prompts)[["speedup"]]
    return found.assign(tau=calls.mean())


def cost_table(decoded: Sequence[Decoded], speeds: Sequence[pd.DataFrame]) -> Table:
    """Costs of a call and the speedups they predict."""

    def cells(row: pd.Series) -> list[Cell]:
        return [
            *_setting(row),
            _milliseconds(row["c_draft"]),
            _milliseconds(row["c_verify"]),
            _milliseconds(row["c_other"]),
            _number(row["rho"]),
            _number(row["verify_ratio"], 2),
            _times(row["predicted"]),
            _times(row["predicted_costs"]),
            _times(row["speedup"]),
        ]

    return Table(
        "decoding_costs",
        "Where the time of a target call goes, means. ρ: a draft pass over a "
        "target pass of one token, c_q/c_p. Predicted: τ/(1 + γρ), which takes a verification "
        "for a target pass, and τ c_p/(c_draft + c_verify), from the costs as measured; both "
        f"leave out the law, the roll-back and the pass over the prompt. {WALL_CLOCK}",
        "Method",
        [("", 2), ("milliseconds", 3), ("ratios", 2), ("speedup", 3)],
        [
            "γ",
            "T",
            "draft",
            "verify",
            "other",
            "ρ",
            "c_verify/c_p",
            "predicted",
            "from costs",
            "measured",
        ],
        _by_target(decoded, speeds, cells),
        [],
        _together(decoded, speeds),
    )


def latency_table(decoded: Sequence[Decoded], speeds: Sequence[pd.DataFrame]) -> Table:
    """What a reader of the answer sees."""

    def cells(row: pd.Series) -> list[Cell]:
        return [
            *_setting(row),
            Cell(f"{row['tokens_per_second']:.1f}"),
            _milliseconds(row["first_token"]),
            *(_milliseconds(row[f"itl_{level}"]) for level in (50, 95, 99)),
            Cell(share_text(row["itl_zero"])),
            Cell(f"{row['memory'] / 2**20:.1f}"),
        ]

    return Table(
        "decoding_latency",
        "Throughput, time to the first token (median), the time between "
        "tokens (percentiles), the share of tokens that arrive together with the one before, and "
        "the memory needed beside the target: measured peaks on CUDA, elsewhere the drafter's "
        f"weights and cache. {WALL_CLOCK}",
        "Method",
        [("", 4), ("between tokens, ms", 3), ("", 2)],
        ["γ", "T", "tokens/s", "first, ms", "50 %", "95 %", "99 %", "at once", "MiB"],
        _by_target(decoded, speeds, cells),
        [],
        _together(decoded, speeds),
    )


def temperature_table(decoded: Sequence[Decoded], speeds: Sequence[pd.DataFrame]) -> Table | None:
    """Temperature x draft length, for methods decoded at several of both or either."""
    temperatures: list[float] = []
    sections = []
    for one, table in zip(decoded, speeds, strict=True):
        for method, group in table[table["draft_length"] > 0].groupby("method", sort=False):
            if len(set(group["temperature"])) > 1:
                sections.append((f"{one.target}, {method}", group))
                temperatures += list(group["temperature"])
    if not sections:
        return None
    heat = sorted(set(temperatures))
    shown = []
    for title, group in sections:
        look = group.set_index(["draft_length", "temperature"])
        rows = []
        for gamma in sorted(group["draft_length"].unique()):
            cells: list[Cell] = []
            for t in heat:
                row = look.loc[(gamma, t)] if (gamma, t) in look.index else None
                cells += (
                    [Cell("")] * 3
                    if row is None
                    else [
                        _times(row["speedup"]),
                        _number(row["tokens_per_call"], 2),
                        Cell(share_text(row["agreement"])),
                    ]
                )
            rows.append((f"γ = {gamma}", cells))
        shown.append(Section(title, rows))
    return Table(
        "decoding_temperature",
        f"Effects of temperature T and draft length γ. {WALL_CLOCK}",
        "",
        [(f"T = {t:g}", 3) for t in heat],
        ["speedup", "τ", "agreement"] * len(heat),
        shown,
        [],
        pd.concat([group.assign(section=title) for title, group in sections], ignore_index=True),
    )


def length_table(decoded: Sequence[Decoded], speeds: Sequence[pd.DataFrame]) -> Table | None:
    """The best draft length, predicted and found."""
    frames = [
        decoding.draft_lengths(table).assign(target=one.target)
        for one, table in zip(decoded, speeds, strict=True)
    ]
    data = pd.concat(frames, ignore_index=True)
    return (
        None
        if data.empty
        else Table(
            "decoding_draft_length",
            "Draft length γ with the largest speedup: predicted from the "
            "pooled acceptance rate a and ρ as the maximum of (1 − aᵞ⁺¹)/((1 − a)(1 + γρ)), and "
            "found among those tried. 0: drafting is predicted not to pay.",
            "Method",
            [("", 6)],
            ["T", "a", "ρ", "predicted", "found", "tried"],
            [
                Section(
                    one.target,
                    [
                        (
                            row["method"],
                            [
                                Cell(f"{row['temperature']:g}"),
                                _number(row["rate"]),
                                _number(row["rho"]),
                                Cell(str(row["predicted"])),
                                Cell(str(row["found"])),
                                Cell(row["tried"]),
                            ],
                        )
                        for _, row in frame.iterrows()
                    ],
                )
                for one, frame in zip(decoded, frames, strict=True)
                if len(frame)
            ],
            [],
            data,
        )
    )


def _by_target(
    decoded: Sequence[Decoded], speeds: Sequence[pd.DataFrame], cells: object
) -> list[Section]:
    assert callable(cells)
    return [
        Section(one.target, [(row["method"], cells(row)) for _, row in table.iterrows()])
        for one, table in zip(decoded, speeds, strict=True)
    ]


def _together(decoded: Sequence[Decoded], speeds: Sequence[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(
        [table.assign(target=one.target) for one, table in zip(decoded, speeds, strict=True)],
        ignore_index=True,
    )


def _setting(row: pd.Series) -> list[Cell]:
    gamma = int(row["draft_length"])
    return [Cell(str(gamma) if gamma else UNDEFINED), Cell(f"{row['temperature']:g}")]


def _number(value: float, digits: int = 3) -> Cell:
    rounded = round(value, digits) + 0.0  # no minus before a zero
    return Cell(UNDEFINED if math.isnan(value) else f"{rounded:.{digits}f}")


def _times(value: float) -> Cell:
    return Cell(UNDEFINED if math.isnan(value) else f"{value:.2f}×")


def _milliseconds(value: float) -> Cell:
    return Cell(UNDEFINED if math.isnan(value) else f"{1000 * value:.2f}")
