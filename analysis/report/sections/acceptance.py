"""The section on a drafter: what is accepted of it, what was certified, what it gains and costs.

It reads the frames `acceptance` (target, rule, statistic, value, optimistic, ...), `breakdown` (the
same by divergence and by depth), `levels` (what a KL certifies), `frontier` and `listing` (group,
name, parameter, setting, rule: what each rule is there for); of two engines' logs only `logged`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pandas as pd

from ...acceptance.sampling import ARGMAX, SAMPLED, SPECULATIVE
from ...acceptance.summary import UNION
from ...rules import Additive, Mars, Multiplicative, Rule, StrictGreedy, TopMAdditive, Tree, Typical
from ...statistics.run_lengths import censored_ends, with_censored
from ..notes import AT_LEAST, few_notes, infinite_notes, share_notes
from ..records import Column, Part, Results, Row, Table, across, select
from ..text import UNDEFINED, length_text, number_text, range_text, share_text
from .acceptance_figures import (
    divergence_figure,
    frontier_figure,
    frontier_table,
    own_rules,
    row_of,
    rules_figure,
)

# rules of figures and of the table by depth, as far as the study has them
SHOWN: tuple[Rule, ...] = (
    Additive(0.1),
    StrictGreedy(),
    Multiplicative(0.5),
    TopMAdditive(4, 0.1),
    Typical(0.1, 0.09),
    Mars(0.9),
    Tree(4),
)
LENGTH = "realised_per_call"
EMPTY = "Such a step is certified whatever the KL, and R − KL is +∞ there."
ACCEPTED: Mapping[str, tuple[str, Callable[[float], str]]] = {  # heading and print of a statistic
    "acceptance": ("accepted", share_text),
    "certified": ("certified", share_text),
    "coverage": ("coverage", share_text),
    "slack_median": ("R − KL", number_text),
}
DIVERGENCES = {
    "kl": "KL",
    "tv": "TV",
    "hellinger": "Hellinger",
    "reverse_kl": "reverse KL",
    UNION: "union",
}
KINDS = ("uniform", "budget", "realised")  # of what a mean KL certifies
CERTIFIED = {"step": "each KL", "uniform": "bound", "budget": "mean", "measured": "measured"}
TOKENS = "tokens"  # kind of a row that has the length under a law
LAWS = {
    SPECULATIVE: "Speculative sampling",
    ARGMAX: "Argmax drafted, speculative sampling",
    "exponential races": "Exponential races",
    "exponential races, lower bound": "Exponential races, lower bound",
}
LOGGED = {
    "acceptance": "accepted",
    "certified_tv": "certified by TV",
    "certified_kl": "certified by KL",
}


def acceptance_part(results: Results, says: Sequence[str] = ()) -> Part:
    """Return the part on a drafter; `says` are paragraphs below the heading."""
    title = f"Will {results.drafter} be accepted?"
    if "logged" in results:
        return Part(title, [logged_table(results)], says)
    shown = shown_rules(results)
    return Part(
        title,
        [
            rules_figure(results),
            acceptance_table(results),
            divergence_table(results),
            divergence_figure(results, shown, DIVERGENCES),
            budget_table(results),
            frontier_table(results),
            frontier_figure(results),
            sampling_table(results),
            depth_table(results, shown),
        ],
        says,
    )


def shown_rules(results: Results) -> list[str]:
    """Return the labels of the rules of figures, and of the table by depth."""
    measured = [rule for rule in results["breakdown"]["rule"].unique() if rule]
    own = [rule for rule in results.rules.values() if rule.own]
    known = dict.fromkeys(rule.label for rule in (*own, *SHOWN) if rule.label in measured)
    return list(known or measured)[: len(SHOWN)]


def acceptance_table(results: Results) -> Table:
    """Certified beside accepted, rule by rule."""
    rules, frame = own_rules(results), results["acceptance"]
    columns = [
        Column(heading, partial(_ends, text), "", {"statistic": name})
        for name, (heading, text) in ACCEPTED.items()
    ]

    def share(target: str, rule: str, statistic: str) -> float:
        return float(row_of(results, target, rule, statistic)["value"])

    return Table(
        name="acceptance",
        title="What is accepted, and what was certified",
        question="How much of what is accepted was guaranteed?",
        caption=f"What each rule accepts of {results.drafter}, teacher-forced on the target's own "
        "trajectories, and what its certificates promised. Certified: KL(p‖q) below the "
        "certificate R; coverage: certified among accepted; R − KL: its median in nats.",
        data=with_censored(select(frame, rule=rules, statistic=[*ACCEPTED, "empty", "inexact"])),
        row="rule",
        columns=across(results.targets, columns),
        stub="Rule",
        order=rules,
        names=results.names,
        notes=[
            *share_notes(share, rules, results.targets, EMPTY),
            *infinite_notes(results, {"kl": "KL"}),
            *few_notes(frame["prompts"]),
        ],
    )


def _ends(text: Callable[[float], str], row: Row) -> str:
    """Return a statistic as printed: a range where certificates are intervals."""
    return length_text(text(row["value"]), text(row["optimistic"]), censored_ends(row))


def _range(text: Callable[[float], str], row: Row) -> str:
    return range_text(text(row["value"]), text(row["optimistic"]))


def divergence_table(results: Results) -> Table:
    """Coverage of accepted steps by each divergence and by their union, rule by rule."""
    frame = select(results["breakdown"], depth=0).drop(columns="depth")
    names = [str(name) for name in frame["divergence"].unique()]
    rules = [rule for rule in own_rules(results) if rule in set(frame["rule"])]
    where = {name: {"divergence": name, "statistic": "coverage"} for name in names}
    columns = [Column(DIVERGENCES[x], partial(_range, share_text), "", where[x]) for x in names]
    return Table(
        name="divergences",
        title="Coverage by other divergences",
        question="Which accepted steps do certificates in other divergences promise?",
        caption="Share of the accepted steps that certificates promise to accept, by the "
        "divergence of target and draft that they bound. A step is certified if the divergence of "
        f"{results.drafter} there lies below the certificate. Union: at least one of them "
        "certifies the step. A range is the least and the most that certificates known as "
        "intervals allow.",
        data=select(frame, rule=[*rules, ""]),
        row="rule",
        columns=across(results.targets, columns),
        stub="Rule",
        order=rules,
        names=results.names,
        notes=[
            *infinite_notes(results, {x: DIVERGENCES[x] for x in names}),
            *few_notes(frame["prompts"]),
        ],
    )


def budget_table(results: Results) -> Table:
    """What each rule is sure to accept at the drafter's mean KL, beside what it accepts."""
    levels = results["levels"]
    frame = levels[levels["kind"].isin(KINDS) & (levels["statistic"] != "probability")]
    rules = [rule for rule in own_rules(results) if rule in set(frame["rule"])]
    limited = [x for x in frame["statistic"].unique() if x not in ("acceptance", "tokens")]
    headings = {"acceptance": "", "tokens": "tokens, "}
    headings |= {name: f"γ={name.removeprefix('tokens_')}, " for name in limited}
    columns = [
        Column(
            heading + kind,
            share_text if name == "acceptance" else number_text,
            where={"statistic": name, "kind": kind},
        )
        for name, heading in headings.items()
        for kind in KINDS
    ]
    by_target = frame.groupby("target", sort=False)["eps"].first()
    means = {target: float(by_target[target]) for target in results.targets}
    return Table(
        name="budgets",
        title="What a mean KL certifies",
        question="What is sure at the mean KL of a training run?",
        caption=f"Of {results.drafter}, whose mean KL(p‖q) is "
        f"{' / '.join(number_text(mean, 3) for mean in means.values())} nats: the share of steps "
        "that are accepted, then the tokens a call with drafts of any length, and of at most γ "
        "tokens. Uniform: sure if the KL is at most this at every step. Budget: sure if its mean "
        "is, as training reports it; the worst drafter spends it where certificates are smallest. "
        "Realised: of this drafter.",
        data=select(frame, rule=rules),
        row="rule",
        columns=across(results.targets, columns),
        stub="Rule",
        order=rules,
        names=results.names,
        notes=[*infinite_notes(results, {"kl": "KL"}), *few_notes(frame["prompts"])],
    )


def sampling_table(results: Results) -> Table | None:
    """Certified and measured acceptance of each law; None where no answers were sampled."""
    levels, names = results["levels"], results.names
    frame = levels[levels["statistic"] == "probability"]
    if frame.empty:
        return None
    frame = frame.rename(columns={"rule": "law"}).drop(columns="statistic")
    known = results["acceptance"]
    others = known[~known["rule"].isin(names)].rename(columns={"rule": "law"})  # no rule's
    kinds = {"acceptance": "measured", LENGTH: TOKENS}
    others = others.assign(kind=others["statistic"].map(kinds))
    extra = others[(others["kind"] == TOKENS) | ~others["law"].isin(frame["law"])]
    extra = extra[extra["kind"].notna()]
    shown = pd.concat([frame, extra], ignore_index=True)
    drawn = {f"{SAMPLED}{rule}": names[rule] for rule in own_rules(results)}
    columns = [Column(text, share_text, where={"kind": kind}) for kind, text in CERTIFIED.items()]
    columns.append(Column("tokens a call", partial(_ends, number_text), "", {"kind": TOKENS}))
    means = [float(frame.loc[frame["target"] == x, "eps"].iloc[0]) for x in results.targets]
    return Table(
        name="sampling",
        title="Acceptance where something is sampled",
        question="What is accepted, and what is sure, when the engine samples?",
        caption=f"Of {results.drafter} at temperature {results.facts['sampled']:g}, at which the "
        "answers were sampled: the mean probability with which a draft is accepted, at least. Each "
        "KL: from the KL of every step; bound: if it is nowhere above the mean of "
        f"{' / '.join(number_text(mean, 3) for mean in means)} nats; mean: from this mean alone. "
        "Measured: what this drafter does. Speculative sampling accepts a draft drawn from q with "
        "probability 1 − TV(p, q), and the argmax of q, which engines draft by default, with its "
        "probability under p; exponential races accept by the formula of arXiv 2504.15475, not "
        f"below its Lemma C.1. Tokens a call: drafts of unlimited length. {AT_LEAST}",
        data=shown[frame.columns],
        row="law",
        columns=across(results.targets, columns),
        stub="Law",
        order={"": LAWS, "A sampled draft, kept if the rule accepts it": drawn},
        notes=[
            f"{UNDEFINED}: not certified, or not measured, as what a sampled draft is in fact "
            "accepted with under a rule.",
            *few_notes(frame["prompts"]),
        ],
        shown=shown,
    )


def depth_table(results: Results, rules: Sequence[str]) -> Table | None:
    """KL, acceptance and certification over depth; None for a drafter that is no head."""
    frame = results["breakdown"]
    frame = frame[(frame["depth"] > 0) & frame["rule"].isin(["", *rules])]
    if frame.empty:
        return None
    texts = {"kl_median": number_text}

    def text(row: Row) -> str:
        return _range(texts.get(row["statistic"], share_text), row)

    depths = sorted(frame["depth"].unique())
    columns = [Column(f"depth {depth}", text, "", {"depth": depth}) for depth in depths]
    order = {
        "": {("", "kl_median"): "KL(p‖q), median, nats", ("", "finite"): "finite KL(p‖q)"},
        "Accepted": {(rule, "acceptance"): results.names[rule] for rule in rules},
        "Certified": {(rule, "certified"): results.names[rule] for rule in rules},
    }
    keys = pd.Series([*zip(frame["rule"], frame["statistic"], strict=True)], frame.index)
    data = frame.drop(columns="divergence")
    first = ["target", "depth", "rule"]
    return Table(
        name="depths",
        title="By depth of the draft",
        question="How much is lost along a draft?",
        caption=f"What {results.drafter} drafts after none, one, two, ... drafted tokens, "
        "teacher-forced on the target's own trajectories: it reads the target's hidden states as "
        "far as they are known, and its own output after that. All other tables are of depth 1.",
        data=data[[*first, *(name for name in data if name not in first)]],
        row="key",
        columns=across(results.targets, columns),
        order=order,
        notes=few_notes(frame["prompts"]),
        shown=frame.assign(key=keys),
    )


def logged_table(results: Results) -> Table:
    """Accepted beside certified of two engines' logs; every cell is a range of what is known."""
    frame = results["logged"]
    rows = results.rows("logged", "target", "rule", "statistic")
    notes = []
    for target in results.targets:
        pair = {name: rows[target, "", name] for name in ("kl", "tv", "acceptance")}
        three = partial(number_text, digits=3)
        notes.append(
            f"{target}: mean KL(p‖q) {_range(three, pair['kl'])} nats, mean total variation "
            f"{_range(three, pair['tv'])}; speculative sampling of a drafted draw accepts "
            f"{_range(share_text, pair['acceptance'])} of the tokens, at temperature 1."
        )
    return Table(
        name="acceptance_logged",
        title="What is accepted, and what was certified",
        question="How much of what is accepted was guaranteed, by what both engines logged?",
        caption=f"What each rule accepts of {results.drafter}'s most probable token, by the "
        "log-probabilities that both engines logged, and what certificates promised: in total "
        "variation, and in KL. Cells are the least and the most that both logs allow. The KL has "
        "no upper end where the target may have mass on a token that the drafter did not list, so "
        "certificates in KL can't be sure there; those in total variation can.",
        data=frame,
        row="rule",
        columns=[
            Column(heading, partial(_range, share_text), "", {"statistic": name})
            for name, heading in LOGGED.items()
        ],
        stub="Criterion",
        section="target",
        order=list(results.rules),
        names=results.names,
        notes=notes,
    )
