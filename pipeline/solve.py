"""Solves for the t, alpha, theta or m that reaches a goal; prints guaranteed tokens a call.

``python -m pipeline.solve study=mini solve.eps=0.05 solve.share=0.95 solve.tokens=4`` reads what
the stage distributions stored, and computes no artifact. Where the stage drafts is there as well,
what is accepted of its drafter stands beside what is certified. Printed are the verdict and the
answers for strict greedy and `solve.rules`, at most `LINES` lines; a CSV file has every row.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Before NumPy is imported: of products as small as here, threads cost more than they gain.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from analysis.report.text import UNDEFINED, limits, rounded_down, share_text
from pipeline import cli, sweeps
from pipeline.columns import numbers
from pipeline.criteria import build_ranges, judged_by_logs
from pipeline.errors import command
from pipeline.files import slug
from pipeline.stage import Json
from pipeline.stored import read_distributions, read_steps
from pipeline.study import Study

if TYPE_CHECKING:
    from analysis.acceptance.solve import Goal, Solution
    from analysis.rule_config import ParameterRange
    from analysis.rules import Rule

LINES = 40  # that are printed at most
FIRST_RULE = ("promised", "needed")  # tables of which the rows of the first rule are printed


def main(overrides: Sequence[str]) -> None:
    """Compose the configuration as ``python -m pipeline`` does, and print the answers."""
    with command("python -m pipeline.solve [OVERRIDES]", __doc__, overrides):
        study = Study(*overrides)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(import_module, "analysis.acceptance.solve")  # numba, while files are read
            read = [SolvedTarget(study, name) for name in study.targets]
        print_answer(tables(study, read), study)


def tables(study: Study, read: Sequence[SolvedTarget]) -> dict[str, list[Json]]:
    """Return the rows of four tables: solved settings, promises and KL needed of `criteria`.

    The fourth has the paper's closed forms, beside the settings solved for the share of steps.
    """
    wanted = study.config.solve
    ranges = build_ranges(wanted.rules)
    lengths = [*wanted.draft_lengths, None]
    return {
        "solved": [row for target in read for row in target.solved(ranges)],
        "closed forms": [row for target in read for row in target.closed_forms(ranges)],
        "promised": [row for target in read for row in target.promised(study.rules, lengths)],
        "needed": [row for target in read for row in target.needed(study.rules)],
    }


def print_answer(rows_of: Mapping[str, Sequence[Json]], study: Study) -> None:
    """Print the verdict and the main rows; write all rows to a file, and name it."""
    settings, report = study.config, study.store.find(study.task("report"))
    sentences = [f"No verdict yet: `{study.command()}` decodes, and ends with it."]
    if report is not None:
        sentences, _ = cli.verdict_of(report)
    print("\n".join([*sentences, ""]))
    first, wanted = rows_of["promised"][0]["rule"], settings.solve
    first_rows = {
        name: [row for row in rows_of[name] if row["rule"] == first] for name in FIRST_RULE
    }
    within = f"any drafter within {wanted.eps:g}"
    whose = {"certified": within, "measured": "this drafter", "needed": "KL to stay below"}
    solved = pivot(rows_of["solved"], "wanted", "value", whose)
    promised = pivot(first_rows["promised"], "drafts", "tokens", whose)
    needed = pivot(first_rows["needed"], "certified", "below", whose)
    solved = with_closed_forms(solved, rows_of["closed forms"], within)
    room = max(1, LINES - len(sentences) - 9 - len(promised) - len(needed))
    for title, rows in {
        "Strictest setting that reaches what is wanted": solved[:room],
        "Tokens a call, by draft length": promised,
        "A drafter is certified on so many steps if its KL stays below": needed,
    }.items():
        if rows:
            print(f"{title}:")
            sweeps.print_table(rows)
    every = [{"table": name, **row} for name, table in rows_of.items() for row in table]
    sweeps.write_rows(
        every, Path(settings.outputs) / "tables" / slug(f"solve-{settings.study}.csv")
    )


def pivot(rows: Sequence[Json], key: str, value: str, whose: Mapping[str, str]) -> list[Json]:
    """Return rows with the values of a key as columns, each a value with its interval as text.

    Args:
        rows: with target, rule and, most of them, kind.
        key: whose values become columns.
        value: what stands there.
        whose: printed text of each kind.
    """
    wide: dict[tuple[Any, ...], Json] = {}
    for row in rows:
        of = whose[row.get("kind", "needed")]
        named = {"target": row["target"], "rule": row["rule"], "of": of}
        low, high = (row[name] for name in limits(value))
        text = f"{row[value]:.4g}" + (f" [{low:.3g}, {high:.3g}]" if low < high else "")
        cell = UNDEFINED if math.isnan(row[value]) else text
        wide.setdefault(tuple(named.values()), named)[str(row[key])] = cell
    return list(wide.values())


def with_closed_forms(solved: Sequence[Json], closed: Sequence[Json], of: str) -> list[Json]:
    """Return solved rows, each with the closed form of its range; first those of no range.

    Args:
        solved: rows of `pivot`.
        closed: rows with target, rule, kind, "asks for" and "meets it".
        of: the printed kind of the rows that closed forms are about.
    """
    rows = [{**row, "closed form": UNDEFINED} for row in solved]
    first: list[Json] = []
    for form in closed:
        if form["kind"] == "sufficient":
            key = {"target": form["target"], "rule": form["rule"], "of": of}
            text = f"{form['asks for']}, met by {share_text(form['meets it'])}"
            places = [row for row in rows if key.items() <= row.items()]
            if not places:
                first.append({**key, "closed form": text})
            for row in places:
                row["closed form"] = text
    return [*first, *rows]


class SolvedTarget:
    """The stored steps of a target, and the drafts there."""

    def __init__(self, study: Study, name: str) -> None:
        """Read the target `name`.

        Raises:
            PipelineError: the stage distributions was not computed.
        """
        from analysis.acceptance.solve import Goal
        from analysis.statistics.bootstrap import PromptBootstrap
        from analysis.statistics.trajectories import Trajectories

        settings, dump = study.config, study.artifact("distributions", name)
        drafted = study.tasks["drafts"]
        drafts = study.store.find(study.task("drafts", name)) if drafted else None
        wanted, statistics = settings.solve, settings.statistics
        self.label = settings.targets[name].label
        self._settings, self._asked = settings, wanted
        self._dist = read_distributions(dump)
        position = numbers(dump.read(columns=["position"])["position"])
        self._steps = Trajectories.from_positions(position)
        self._bootstrap = PromptBootstrap(
            self._steps.prompts, statistics.resamples, statistics.confidence, statistics.seed
        )
        self._drafted = None if drafts is None else read_steps(drafts)
        self._goals = [Goal(share=wanted.share), Goal(tokens=wanted.tokens)]
        self._goals += [
            Goal(tokens=wanted.tokens, draft_length=length)
            for length in wanted.draft_lengths
            if wanted.tokens <= length + 1  # a call emits no more
        ]
        self._found: dict[str, list[Solution]] = {}

    def solved(self, ranges: Sequence[ParameterRange]) -> Iterator[Json]:
        """Yield a row a range, kind and goal."""
        from analysis.acceptance.solve import solve_accepted

        for searched in ranges:
            if missing := self._missing(searched):
                print(f"{self.label}: {searched.name} is left out: it takes {missing}")
                continue
            kinds = {"certified": self._certified(searched)}
            if self._drafted is not None:
                kinds["measured"] = solve_accepted(
                    self._drafted, searched, self._goals, self._bootstrap
                )
            for kind, solutions in kinds.items():
                for goal, solution in zip(self._goals, solutions, strict=True):
                    yield self._row(
                        searched.name,
                        kind=kind,
                        wanted=_wanted(goal),
                        parameter=searched.parameter,
                        **_interval("value", solution.value, solution.ci_low, solution.ci_high),
                        reached=solution.reached,
                    )

    def _missing(self, searched: ParameterRange) -> str:
        """Return the requirement of a range that an engine's log does not meet; empty if none."""
        if self._settings.distributions.source == "model":
            return ""
        most = max(rule.minimum_k for rule in searched.rules)
        if most > self._dist.k:
            return f"{most} log-probabilities a step, and the log has {self._dist.k}"
        return "" if judged_by_logs(searched.rules[0]) else "raw logits, which a log does not have"

    def _certified(self, searched: ParameterRange) -> list[Solution]:
        """Return the solutions of a range, computed once."""
        from analysis.acceptance.solve import solve_each

        if searched.name not in self._found:
            self._found[searched.name] = solve_each(
                self._dist,
                searched,
                self._asked.eps,
                self._goals,
                bootstrap=self._bootstrap,
                trajectories=self._steps,
            )
        return self._found[searched.name]

    def closed_forms(self, ranges: Sequence[ParameterRange]) -> Iterator[Json]:
        """Yield a row a closed form of strict greedy and of each range at its solved setting.

        They need probabilities that are not rounded.
        """
        from analysis.certificates.closed_forms import turned_round
        from analysis.rules import StrictGreedy

        if self._dist.log_prob_error is not None:
            return
        settings: list[tuple[str, Rule, str]] = [("greedy", StrictGreedy(), "")]
        for searched in ranges:
            if not self._missing(searched):
                (solution, *_) = self._certified(searched)
                exact = UNDEFINED if solution.rule is None else f"{solution.value:.4g}"
                rule = solution.rule or searched.rules[-1]
                settings.append((searched.name, rule, f"{searched.parameter} = {exact}"))
        for name, rule, exact in settings:
            for row in turned_round(self._dist, rule, self._asked.eps):
                yield self._row(name, **{"exact setting": exact}, **row)

    def promised(self, rules: Sequence[Rule], lengths: Iterable[int | None]) -> Iterator[Json]:
        """Yield a row a rule, draft length and kind: certified, and measured with a drafter."""
        import numpy as np

        from analysis.acceptance.judgement import judge
        from analysis.certificates.certify import certify
        from analysis.statistics.trajectories import count_calls

        certificates = certify(self._dist, rules)
        flags = {"certified": (certificates.lower > self._asked.eps)[None]}
        if self._drafted is not None:
            verdicts = judge(self._drafted, rules)
            flags["measured"] = np.stack([v.accepted_by_depth for v in verdicts], axis=2)
        bootstrap = self._bootstrap
        for draft_length in lengths:
            for kind, by_depth in flags.items():
                made = count_calls(by_depth, self._steps, draft_length)
                with np.errstate(invalid="ignore"):  # no answer has a second token
                    draws = bootstrap.sums(made.tokens)[:, None] / bootstrap.sums(made.calls)
                    tokens = made.tokens.sum() / made.calls.sum(axis=0)
                for rule, *ends in zip(rules, tokens, *bootstrap.interval(draws), strict=True):
                    labels = {"drafts": _length(draft_length), "kind": kind}
                    yield self._row(rule.label, **labels, **_interval("tokens", *ends))

    def needed(self, rules: Sequence[Rule]) -> Iterator[Json]:
        """Yield a row a rule: below which KL a drafter is certified on the wanted share."""
        from analysis.acceptance.summary import kl_needed
        from analysis.certificates.certify import certify

        lower, share = certify(self._dist, rules).lower, self._asked.share
        for at, rule in enumerate(rules):
            row = kl_needed(lower[:, at], share, self._bootstrap)
            value = rounded_down(float(row["value"]), 4)
            yield self._row(
                rule.label,
                certified=f"{100 * share:g} % of steps",
                **_interval("below", value, row["ci_low"], row["ci_high"]),
            )

    def _row(self, rule: str, **columns: Any) -> Json:
        return {"target": self.label, "rule": rule, **columns, "prompts": self._bootstrap.count}


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
