"""Which t, alpha, theta or m certifies what is wanted, and what can be promised at a draft length.

``python -m pipeline.solve study=mini solve.eps=0.05 solve.share=0.95 solve.tokens=4`` reads what
the stage distributions stored, and computes no artifact. Where the stage acceptance is there as
well, the realised lengths of its drafter stand beside the certified ones.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from hydra import compose, initialize_config_dir

from analysis.report.text import limits
from pipeline import cli
from pipeline.errors import PipelineError
from pipeline.paths import CONF
from pipeline.plan.composition import EXPECTED_ERRORS, explain
from pipeline.plan.rules import build_dials
from pipeline.plan.stage import Node, SummaryRow
from pipeline.store.artifacts import Artifact, Store
from pipeline.store.distributions import read_distributions

PROMISED = (0.05, 0.5)  # quantiles over prompts


def main(overrides: Sequence[str]) -> None:
    """Compose the configuration as ``python -m pipeline`` does, and print the answers."""
    from pipeline import sweeps

    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = compose("config", overrides=list(overrides))
        for rows in answers(*cli.prepare(config), list(overrides)):
            sweeps.print_table(rows)
            print()
    except EXPECTED_ERRORS as error:
        raise SystemExit(f"error: {explain(error)}") from None


def answers(
    settings: Any, nodes: dict[str, list[Node]], store: Store, overrides: Sequence[str] = ()
) -> Iterator[list[SummaryRow]]:
    """Yield the rows of two tables: solved settings, and promises of the rules of `criteria`.

    Raises:
        PipelineError: the stage distributions was not computed; a dial, or a rule, is wrong.
    """
    dials = build_dials(settings.solve.dials, "solve.dials")
    read = []
    for at, node in enumerate(nodes["distributions"]):
        dump = store.find(node)
        if dump is None:
            command = " ".join(["python -m pipeline", *overrides, "stage=distributions"])
            raise PipelineError(f"distributions {node.label} was not made yet: run `{command}`")
        made = nodes["acceptance"][at : at + 1]
        read.append(_Target(settings, node, dump, store.find(made[0]) if made else None))
    yield [row for target in read for row in target.solved(dials)]
    rules = [node.settings["rule"] for node in nodes["certificates"]]
    rules = rules[: len(rules) // len(read)]
    yield [row for target in read for row in target.promised(rules)]


class _Target:
    """The stored steps of a target, and what was accepted of a drafter there."""

    def __init__(self, settings: Any, node: Node, dump: Artifact, made: Artifact | None) -> None:
        from analysis.statistics.bootstrap import PromptBootstrap
        from analysis.statistics.run_lengths import Trajectories

        statistics = settings.statistics
        self._asked, self._label = settings.solve, node.settings["label"]
        self._divergence = settings.certificates.divergence
        self._dist = read_distributions(dump, settings.certificates.temperature)
        position = dump.read(columns=["position"])["position"].to_numpy()
        self._steps = Trajectories.from_positions(position)
        self._bootstrap = PromptBootstrap(
            self._steps.prompts, statistics.resamples, statistics.confidence, statistics.seed
        )
        self._made = made

    def solved(self, dials: Sequence[Any]) -> Iterator[SummaryRow]:
        """Yield a row a dial and goal."""
        from analysis.acceptance.solve import Goal, solve_all

        asked = self._asked
        goals = [Goal(share=asked.share), Goal(tokens=asked.tokens)]
        goals += [
            Goal(tokens=asked.tokens, draft_length=length)
            for length in asked.draft_lengths
            if asked.tokens <= length + 1  # a call emits no more
        ]
        for dial in dials:
            found = solve_all(
                self._dist, dial, asked.eps, goals, self._bootstrap, self._steps, self._divergence
            )
            for goal, one in zip(goals, found, strict=True):
                yield {
                    "target": self._label,
                    "rule": dial.name,
                    "wanted": _wanted(goal),
                    "parameter": one.parameter,
                    "value": one.value,
                    **dict(zip(limits("value"), (one.ci_low, one.ci_high), strict=True)),
                    "reached": one.reached,
                    "prompts": self._bootstrap.count,
                }

    def promised(self, rules: Sequence[Any]) -> Iterator[SummaryRow]:
        """Yield a row a rule, draft length and kind: certified, and realised where it is known."""
        from analysis.certificates.certify import certify
        from analysis.statistics.calls import calls_made, most_calls

        found = certify(self._dist, rules, divergence=self._divergence)
        flags = {"certified": found.lower > self._asked.eps}
        accepted = self._accepted([rule.label for rule in rules])
        flags |= {} if accepted is None else {"realised": accepted}
        for draft_length in (*self._asked.draft_lengths, None):
            for kind, each in flags.items():
                count = most_calls if kind == "certified" else calls_made
                calls = count(each, self._steps, draft_length)
                for at, rule in enumerate(rules):
                    yield self._promise(rule.label, draft_length, kind, calls[:, at])

    def _accepted(self, labels: Sequence[str]) -> Any:
        """Return the (N, R) steps at which the rules accepted the drafter; None if not known."""
        import numpy as np

        if self._made is None:
            return None
        table = self._made.read(columns=["rule", "accepted"])
        size = len(self._steps.prompts)  # a rule's rows stand together
        order = table["rule"].take(range(0, len(table), size)).to_pylist()
        accepted = table["accepted"].to_numpy().reshape(len(order), size)
        return np.stack([accepted[order.index(label)] for label in labels], axis=1)

    def _promise(self, rule: str, draft_length: int | None, kind: str, calls: Any) -> SummaryRow:
        import numpy as np

        bootstrap = self._bootstrap
        low, high = bootstrap.interval(bootstrap.sums(bootstrap.steps) / bootstrap.sums(calls))
        each = np.sort(bootstrap.steps / calls)
        ranks = {q: max(1, int(np.ceil(q * len(each) - 1e-9))) for q in PROMISED}
        return {
            "target": self._label,
            "rule": rule,
            "drafts": _length(draft_length),
            "kind": kind,
            "tokens": float(bootstrap.steps.sum() / calls.sum()),
            **dict(zip(limits("tokens"), (float(low), float(high)), strict=True)),
            **{f"{100 * q:g} % of prompts": float(each[rank - 1]) for q, rank in ranks.items()},
            "prompts": bootstrap.count,
        }


def _wanted(goal: Any) -> str:
    if goal.tokens is None:
        return f"{100 * goal.share:g} % of steps"
    return f"{goal.tokens:g} tokens, drafts {_length(goal.draft_length)}"


def _length(draft_length: int | None) -> str:
    return "of any length" if draft_length is None else f"of {draft_length}"


if __name__ == "__main__":
    main(sys.argv[1:])
