"""Solves for the t, alpha, theta or m that reaches a goal; prints guaranteed tokens per call.

``python -m pipeline.solve study=mini solve.eps=0.05 solve.share=0.95 solve.tokens=3`` reads what
the stage distributions stored, and computes no artifact. Where the stage drafts is there as well,
what is accepted of its drafter stands beside what is certified. Between them stands a usual
drafter, one that is off in a random direction, which is a model. Printed are the solved settings of
`solve.rules`, and of the other tables the rows of the first rule; a CSV file has every row.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.acceptance.parameter_range import build_range
from analysis.report.text import UNDEFINED, estimate_text, few_notes, rounded_down
from analysis.rule_base import check_k
from analysis.statistics.estimate import Estimate, interval_columns
from pipeline.core.commands import command
from pipeline.core.files import slug
from pipeline.core.printed_tables import print_table, write_rows
from pipeline.core.stage import Json
from pipeline.inputs.artifact_readers import StoredDistributions, read_steps, resampled
from pipeline.settings.criteria import judged_by_logs, rule_errors
from pipeline.study import Study

if TYPE_CHECKING:
    from analysis.acceptance.parameter_range import ParameterRange
    from analysis.rules import Rule
    from analysis.topk import Floats


def main(overrides: Sequence[str]) -> None:
    """Compose the configuration as ``python -m pipeline`` does, and print the answers."""
    with command("python -m pipeline.solve [OVERRIDES]", __doc__, overrides):
        study = Study(*overrides)
        print_tables(tables(study), study)


def tables(study: Study) -> dict[str, list[Json]]:
    """Return the rows of four tables, and how often the drafter is within `solve.eps`.

    The tables: settings, tokens per call, usual drafter, KL needed.
    """
    with rule_errors("solve.rules"):
        ranges = [
            build_range(entry if isinstance(entry, Mapping) else {"rule": entry})
            for entry in study.config.solve.rules
        ]
    names = ("solved", "promised", "usual", "needed", "within")
    rows: dict[str, list[Json]] = {name: [] for name in names}
    for name in study.targets:
        target = SolvedTarget(study, name)
        parts = (
            target.solved(ranges),
            target.promised(),
            target.usual(),
            target.needed(),
            target.within(),
        )
        for table, part in zip(rows.values(), parts, strict=True):
            table += [
                {"target": target.label, **row, "prompts": target.bootstrap.count} for row in part
            ]
    return rows


def print_tables(rows_of: Mapping[str, Sequence[Json]], study: Study) -> None:
    """Print the main rows; write all rows to a file, and name it."""
    whose = {
        "certified": f"any drafter within {study.config.solve.eps:g}",
        "measured": "this drafter",
        "needed": "KL to stay below",
    }
    at_a_kl = {
        "certified": "any drafter, guaranteed",
        "usual": "a usual drafter, a model",
        "measured": "this drafter",
    }
    first = study.rules[0].label
    for name, title, key, value in (
        ("solved", "Strictest setting that reaches what is wanted", "wanted", "value"),
        ("promised", "Tokens per call, by draft length", "drafts", "tokens"),
        ("usual", "Share of first choices that is accepted", "at", "accepted"),
        ("needed", "A drafter is certified on so many steps if its KL stays below", "certified",
         "below"),
    ):  # fmt: skip
        shown = [row for row in rows_of[name] if name == "solved" or row["rule"] == first]
        print(f"{title}:")
        print_table(_pivot(shown, key, value, at_a_kl if name == "usual" else whose))
    for row in rows_of["within"]:
        share = estimate_text(Estimate.read(row, "within"), percent=True)
        print(
            f"{row['target']}: this drafter's KL is at most {row['eps']:g} at {share} of the steps"
        )
    every = [{"table": name, **row} for name, table in rows_of.items() for row in table]
    for note in few_notes(row["prompts"] for row in every):
        print(note)
    file = Path(study.config.outputs) / "tables" / f"{slug(f'solve-{study.config.study}')}.csv"
    write_rows(every, file)


def _pivot(rows: Sequence[Json], key: str, value: str, whose: Mapping[str, str]) -> list[Json]:
    wide: dict[tuple[Any, ...], Json] = {}
    for row in rows:
        named = {name: row[name] for name in ("target", "rule")}
        named["of"] = whose[row.get("kind", "needed")]
        low, high = (row[name] for name in interval_columns(value))
        text = f"{row[value]:.4g}" + (f" [{low:.4g}, {high:.4g}]" if low < high else "")
        cell = UNDEFINED if math.isnan(row[value]) else text
        if row.get("any_setting"):
            cell = "any"
        wide.setdefault(tuple(named.values()), named)[str(row[key])] = cell
    return list(wide.values())


class SolvedTarget:
    """The stored steps of a target, and the drafts there."""

    def __init__(self, study: Study, name: str) -> None:
        dump = study.artifact("distributions", name)
        drafts = study.store.find(study.task("drafts", name)) if study.tasks["drafts"] else None
        self.label = study.config.targets[name].label
        self._study = study
        self._wanted = study.config.solve
        self._dist = StoredDistributions(dump)
        self._vocab_size = dump.metadata["vocab_size"]
        self._steps, self.bootstrap = resampled(
            dump.read(columns=["prompt_id", "position"]),
            study.task("distributions", name),
            study.statistics,
        )
        self._drafted = None if drafts is None else read_steps(drafts)

    def solved(self, ranges: Sequence[ParameterRange]) -> Iterator[Json]:
        """Yield a row a range, kind and goal."""
        from analysis.acceptance.solve import Goal, solve, solve_accepted

        wanted = self._wanted
        bootstrap = self.bootstrap
        goals = {f"{100 * wanted.share:g} % of steps": Goal(wanted.share)}
        for length in (None, *wanted.draft_lengths):
            if length is None or wanted.tokens <= length + 1:  # a call emits no more
                name = f"{wanted.tokens:g} tokens, drafts {_length(length)}"
                goals[name] = Goal(wanted.tokens, True, length)
        every = list(goals.values())
        chosen = list(filter(self._has, ranges))
        with rule_errors("solve.rules"):
            rules = [rule for searched in chosen for rule in searched.rules]
            check_k(rules, self._dist.k, self._vocab_size, setting="distributions.k")
        for searched in chosen:
            kinds = {
                "certified": solve(self._dist, searched, wanted.eps, every, bootstrap, self._steps)
            }
            if self._drafted is not None:
                kinds["measured"] = solve_accepted(self._drafted, searched, every, bootstrap)
            for kind, solutions in kinds.items():
                for name, solution in zip(goals, solutions, strict=True):
                    yield {
                        "rule": searched.name, "kind": kind, "wanted": name,
                        "parameter": searched.parameter,
                        **solution.estimate.columns(),
                        "reached": solution.reached, "any_setting": solution.any_setting,
                    }  # fmt: skip

    def _has(self, searched: ParameterRange) -> bool:
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

    @cached_property
    def _certificates(self) -> Floats:
        """The (R, N) lower ends of the certificates, by rule."""
        from analysis.certificates.certify import certify

        rules = self._study.rules
        lower = np.empty((len(rules), len(self._dist)))
        for index, part in self._dist.parts():
            lower[:, index] = certify(part, rules).lower.T
        return lower

    def promised(self) -> Iterator[Json]:
        """Yield a row a rule, draft length and kind: certified, and measured with a drafter."""
        from analysis.acceptance.judgement import judge
        from analysis.statistics.trajectories import count_calls

        rules = self._study.rules
        flags = {"certified": list(self._certificates > self._wanted.eps)}
        if self._drafted is not None:
            flags["measured"] = [
                judgement.accepted_by_depth for judgement in judge(self._drafted, rules)
            ]
        for draft_length in (*self._wanted.draft_lengths, None):
            for kind, by_rule in flags.items():
                for rule, accepted in zip(rules, by_rule, strict=True):
                    counts = count_calls(accepted, self._steps, draft_length)
                    tokens = self.bootstrap.ratio(counts.tokens, counts.calls)
                    labels = {"rule": rule.label, "drafts": _length(draft_length), "kind": kind}
                    yield {**labels, **tokens.columns("tokens")}

    def usual(self) -> Iterator[Json]:
        """Yield a row a rule, kind and KL: accepted of any drafter, a usual one, and this one.

        At the KL `solve.eps` of every step, and at the KLs of the study's drafter.
        """
        from analysis.acceptance.judgement import judge
        from analysis.acceptance.usual_drafter import usual_statistics

        rules = self._study.rules
        eps = self._wanted.eps
        kl_text = f"KL {eps:g}"
        usual = usual_statistics(self._dist, rules, eps, self.bootstrap)
        for rule, lower, row in zip(rules, self._certificates, usual, strict=True):
            worst = self.bootstrap.ratio_interval(lower > eps)
            yield _accepted(rule, kl_text, "certified", worst)
            yield _accepted(rule, kl_text, "usual", Estimate.read(row))
        if self._drafted is None:
            return
        kl_text = "this drafter's KLs"
        usual = usual_statistics(self._drafted.target, rules, self._drafted.kl, self.bootstrap)
        for row, judged in zip(usual, judge(self._drafted, rules), strict=True):
            worst = self.bootstrap.ratio_interval(judged.certified)
            measured = self.bootstrap.ratio_interval(judged.accepted)
            yield _accepted(judged.rule, kl_text, "certified", worst)
            yield _accepted(judged.rule, kl_text, "usual", Estimate.read(row))
            yield _accepted(judged.rule, kl_text, "measured", measured)

    def needed(self) -> Iterator[Json]:
        """Yield a row a rule: below which KL a drafter is certified on the wanted share."""
        from analysis.acceptance.drafter import kl_needed

        rules = self._study.rules
        share = self._wanted.share
        for rule, lower in zip(rules, self._certificates, strict=True):
            needed = kl_needed(lower, share, self.bootstrap)
            below = needed._replace(value=rounded_down(needed.value, 4)).columns("below")
            yield {"rule": rule.label, "certified": f"{100 * share:g} % of steps", **below}

    def within(self) -> Iterator[Json]:
        """Yield the share of steps at which the study's drafter has a KL of at most `solve.eps`."""
        if self._drafted is not None:
            eps = self._wanted.eps
            share = self.bootstrap.ratio_interval(self._drafted.kl <= eps)
            yield {"eps": eps, **share.columns("within")}


def _accepted(rule: Rule, kl_text: str, kind: str, accepted: Estimate) -> Json:
    return {"rule": rule.label, "at": kl_text, "kind": kind, **accepted.columns("accepted")}


def _length(draft_length: int | None) -> str:
    return "of any length" if draft_length is None else f"of {draft_length}"


if __name__ == "__main__":
    main(sys.argv[1:])
