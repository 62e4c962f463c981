"""Solves for the t, alpha, theta or m that reaches a goal; prints guaranteed tokens per call.

``python -m pipeline.solve study=mini solve.eps=0.05 solve.share=0.95 solve.tokens=4`` reads what
the stage distributions stored, and computes no artifact. Where the stage drafts is there as well,
what is accepted of its drafter stands beside what is certified. Printed are the verdict and the
answers for strict greedy and `solve.rules`, at most `LINES` lines; a CSV file has every row.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.report.text import UNDEFINED, limits, percent_text, rounded_down
from pipeline import cli, sweeps
from pipeline.criteria import build_ranges, judged_by_logs
from pipeline.errors import command
from pipeline.files import slug
from pipeline.stage import Json
from pipeline.stored import read_distributions, read_steps, resampled
from pipeline.study import Study

if TYPE_CHECKING:
    from analysis.acceptance.solve import Goal, Solution
    from analysis.rule_config import ParameterRange
    from analysis.rules import Rule

LINES = 40  # that are printed at most


def main(overrides: Sequence[str]) -> None:
    """Compose the configuration as ``python -m pipeline`` does, and print the answers."""
    with command("python -m pipeline.solve [OVERRIDES]", __doc__, overrides):
        study = Study(*overrides)
        print_answer(tables(study), study)


def tables(study: Study) -> dict[str, list[Json]]:
    """Return the rows of four tables: solved settings, promises and KL needed of `criteria`.

    The second has the paper's closed forms, beside the settings solved for the share of steps.

    Raises:
        PipelineError: the stage distributions was not computed.
    """
    rows: dict[str, list[Json]] = {
        name: [] for name in ("solved", "closed forms", "promised", "needed")
    }
    ranges = build_ranges(study.config.solve.rules)
    for target in [SolvedTarget(study, name) for name in study.targets]:
        of_target = [
            ("solved", target.solved(searched)) for searched in ranges if target.has(searched)
        ]
        of_target.append(("closed forms", target.closed_forms()))
        of_target += [("promised", target.promised()), ("needed", target.needed())]
        for name, found in of_target:
            rows[name] += [
                {"target": target.label, **row, "prompts": target.bootstrap.count} for row in found
            ]
    return rows


def print_answer(rows_of: Mapping[str, Sequence[Json]], study: Study) -> None:
    """Print the verdict and the main rows; write all rows to a file, and name it."""
    settings, report = study.config, study.store.find(study.task("report"))
    sentences = [f"No verdict yet: `{study.command()}` decodes, and ends with it."]
    if report is not None:
        sentences, _ = cli.verdict_of(report)
    print("\n".join([*sentences, ""]))
    within = f"any drafter within {settings.solve.eps:g}"
    whose = {"certified": within, "measured": "this drafter", "needed": "KL to stay below"}
    first = rows_of["promised"][0]["rule"]
    promised, needed = (
        _pivot([row for row in rows_of[name] if row["rule"] == first], key, value, whose)
        for name, key, value in (("promised", "drafts", "tokens"), ("needed", "certified", "below"))
    )
    solved = _pivot(rows_of["solved"], "wanted", "value", whose)
    solved = _with_closed_forms(solved, rows_of["closed forms"], within)
    room = max(1, LINES - len(sentences) - 9 - len(promised) - len(needed))
    for title, rows in {
        "Strictest setting that reaches what is wanted": solved[:room],
        "Tokens per call, by draft length": promised,
        "A drafter is certified on so many steps if its KL stays below": needed,
    }.items():
        print(f"{title}:")
        sweeps.print_table(rows)
    every = [{"table": name, **row} for name, table in rows_of.items() for row in table]
    file = Path(settings.outputs) / "tables" / slug(f"solve-{settings.study}.csv")
    sweeps.write_rows(every, file)


def _pivot(rows: Sequence[Json], key: str, value: str, whose: Mapping[str, str]) -> list[Json]:
    """Return rows with the values of a key as columns: a value with its interval, as text."""
    wide: dict[tuple[Any, ...], Json] = {}
    for row in rows:
        named = {name: row[name] for name in ("target", "rule")}
        named["of"] = whose[row.get("kind", "needed")]
        low, high = (row[name] for name in limits(value))
        text = f"{row[value]:.4g}" + (f" [{low:.3g}, {high:.3g}]" if low < high else "")
        cell = UNDEFINED if math.isnan(row[value]) else text
        wide.setdefault(tuple(named.values()), named)[str(row[key])] = cell
    return list(wide.values())


def _with_closed_forms(solved: Sequence[Json], closed: Sequence[Json], of: str) -> list[Json]:
    """Return solved rows with their sufficient closed form; first the forms of no range."""
    texts = {(row["target"], row["rule"]): UNDEFINED for row in solved}
    alone: list[Json] = []
    for form in closed:
        if form["kind"] == "sufficient":
            key = form["target"], form["rule"]
            text = f"{form['asks for']}, met by {percent_text(form['meets it'])}"
            if key in texts:
                texts[key] = text
            else:
                named = dict(zip(("target", "rule"), key, strict=True))
                alone.append({**named, "of": of, "closed form": text})
    return alone + [
        {**row, "closed form": texts[row["target"], row["rule"]] if row["of"] == of else UNDEFINED}
        for row in solved
    ]


class SolvedTarget:
    """The stored steps of a target, and the drafts there."""

    def __init__(self, study: Study, name: str) -> None:
        """Read the target `name`.

        Raises:
            PipelineError: the stage distributions was not computed.
        """
        from analysis.acceptance.solve import Goal

        dump, wanted = study.artifact("distributions", name), study.config.solve
        drafts = study.store.find(study.task("drafts", name)) if study.tasks["drafts"] else None
        self.label = study.config.targets[name].label
        self._study, self._wanted, self._dist = study, wanted, read_distributions(dump)
        self._steps, self.bootstrap = resampled(
            dump.read(columns=["prompt_id", "position"]),
            study.task("distributions", name),
            study.statistics,
        )
        self._drafted = None if drafts is None else read_steps(drafts)
        self._goals = [Goal(share=wanted.share), Goal(tokens=wanted.tokens)]
        self._goals += [
            Goal(tokens=wanted.tokens, draft_length=length)
            for length in wanted.draft_lengths
            if wanted.tokens <= length + 1  # a call emits no more
        ]
        self._found: list[tuple[ParameterRange, Solution]] = []  # for the share of steps

    def has(self, searched: ParameterRange) -> bool:
        """Whether the steps have what a rule takes; says what an engine's log lacks."""
        if self._study.config.distributions.source == "model":
            return True
        most = max(rule.minimum_k for rule in searched.rules)
        missing = "raw logits, which a log does not have"
        if most > self._dist.k:
            missing = f"{most} log-probabilities a step, and the log has {self._dist.k}"
        elif judged_by_logs(searched.rules[0]):
            return True
        print(f"{self.label}: {searched.name} is left out: it takes {missing}")
        return False

    def solved(self, searched: ParameterRange) -> Iterator[Json]:
        """Yield a row a kind and goal."""
        from analysis.acceptance.solve import solve, solve_accepted

        bootstrap, goals = self.bootstrap, self._goals
        found = solve(self._dist, searched, self._wanted.eps, goals, bootstrap, self._steps)
        self._found.append((searched, found[0]))
        kinds = {"certified": found}
        if self._drafted is not None:
            kinds["measured"] = solve_accepted(self._drafted, searched, goals, bootstrap)
        for kind, solutions in kinds.items():
            for goal, solution in zip(goals, solutions, strict=True):
                yield {
                    "rule": searched.name, "kind": kind, "wanted": _wanted(goal),
                    "parameter": searched.parameter,
                    **_interval("value", solution.value, solution.ci_low, solution.ci_high),
                    "reached": solution.reached,
                }  # fmt: skip

    def closed_forms(self) -> Iterator[Json]:
        """Yield a row a closed form of strict greedy and of each range at its solved setting.

        They need probabilities that are not rounded.
        """
        from analysis.certificates.closed_forms import turned_round
        from analysis.rules import StrictGreedy

        if self._dist.log_prob_error is not None:
            return
        settings: list[tuple[str, Rule, str]] = [("greedy", StrictGreedy(), "")]
        for searched, solution in self._found:
            exact = UNDEFINED if solution.rule is None else f"{solution.value:.4g}"
            rule = solution.rule or searched.rules[-1]
            settings.append((searched.name, rule, f"{searched.parameter} = {exact}"))
        for name, rule, exact in settings:
            for row in turned_round(self._dist, rule, self._wanted.eps):
                yield {"rule": name, "exact setting": exact, **row}

    def promised(self) -> Iterator[Json]:
        """Yield a row a rule, draft length and kind: certified, and measured with a drafter."""
        from analysis.acceptance.judgement import judge
        from analysis.certificates.certify import certify
        from analysis.statistics.trajectories import count_calls

        rules = self._study.rules
        flags = {"certified": list((certify(self._dist, rules).lower > self._wanted.eps).T)}
        if self._drafted is not None:
            flags["measured"] = [found.accepted_by_depth for found in judge(self._drafted, rules)]
        for draft_length in (*self._wanted.draft_lengths, None):
            for kind, by_rule in flags.items():
                for rule, accepted in zip(rules, by_rule, strict=True):
                    counts = count_calls(accepted, self._steps, draft_length)
                    tokens = self.bootstrap.ratio(counts.tokens, counts.calls)
                    labels = {"rule": rule.label, "drafts": _length(draft_length), "kind": kind}
                    yield {**labels, **_interval("tokens", *tokens)}

    def needed(self) -> Iterator[Json]:
        """Yield a row a rule: below which KL a drafter is certified on the wanted share."""
        from analysis.acceptance.summary import kl_needed
        from analysis.certificates.certify import certify

        rules, share = self._study.rules, self._wanted.share
        for rule, lower in zip(rules, certify(self._dist, rules).lower.T, strict=True):
            row = kl_needed(lower, share, self.bootstrap)
            value = rounded_down(float(row["value"]), 4)
            below = _interval("below", value, row["ci_low"], row["ci_high"])
            yield {"rule": rule.label, "certified": f"{100 * share:g} % of steps", **below}


def _interval(name: str, value: Any, low: Any, high: Any) -> dict[str, float]:
    return dict(zip((name, *limits(name)), (float(value), float(low), float(high)), strict=True))


def _wanted(goal: Goal) -> str:
    if goal.share is not None:
        return f"{100 * goal.share:g} % of steps"
    return f"{goal.tokens:g} tokens, drafts {_length(goal.draft_length)}"


def _length(draft_length: int | None) -> str:
    return "of any length" if draft_length is None else f"of {draft_length}"


if __name__ == "__main__":
    main(sys.argv[1:])
