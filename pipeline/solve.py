"""Which t, alpha, theta or m certifies what is wanted, and what can be promised at a draft length.

``python -m pipeline.solve study=mini solve.eps=0.05 solve.share=0.95 solve.tokens=4`` reads what
the stage distributions stored, and computes no artifact. Where the stage acceptance is there as
well, the realised lengths of its drafter stand beside the certified ones.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Before NumPy is imported: of products as small as here, threads cost more than they gain.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from hydra import compose, initialize_config_dir

from analysis.report.text import limits
from pipeline import cli
from pipeline.engine_settings import ENGINES, Setting, setting_text
from pipeline.errors import PipelineError
from pipeline.execution.runner import shown
from pipeline.paths import CONF
from pipeline.plan.composition import EXPECTED_ERRORS, explain
from pipeline.plan.rules import build_dials
from pipeline.plan.stage import Node, SummaryRow
from pipeline.store.artifacts import Artifact, Store, slug
from pipeline.store.columns import numbers
from pipeline.store.distributions import read_distributions

if TYPE_CHECKING:
    from analysis.acceptance.solve import Goal, Solution, Solver
    from analysis.rules import Rule
    from analysis.rules.dials import Dial

PROMISED = (0.05, 0.5)  # quantiles over prompts


def main(overrides: Sequence[str]) -> None:
    """Compose the configuration as ``python -m pipeline`` does, and print the answers."""
    from pipeline import sweeps

    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = compose("config", overrides=list(overrides))
        settings, nodes, store = cli.prepare(config)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(import_module, "analysis.acceptance.solve")  # numba, while files are read
            read = list(_targets(settings, nodes, store, overrides))
        for rows in _tables(settings, nodes, read):
            sweeps.print_table(rows)
            print()
        if settings.solve.engine is not None:
            _write_settings(settings, read)
    except EXPECTED_ERRORS as error:
        raise SystemExit(f"error: {explain(error)}") from None


def answers(
    settings: Any, nodes: dict[str, list[Node]], store: Store, overrides: Sequence[str] = ()
) -> Iterator[list[SummaryRow]]:
    """Yield the rows of two tables: solved settings, and promises of the rules of `criteria`.

    Raises:
        PipelineError: the stage distributions was not computed; a dial, or a rule, is wrong.
    """
    yield from _tables(settings, nodes, list(_targets(settings, nodes, store, overrides)))


def _targets(
    settings: Any, nodes: dict[str, list[Node]], store: Store, overrides: Sequence[str]
) -> Iterator[_Target]:
    for at, node in enumerate(nodes["distributions"]):
        dump = store.find(node)
        if dump is None:
            command = " ".join(["python -m pipeline", *overrides, "stage=distributions"])
            raise PipelineError(f"distributions {node.label} was not made yet: run `{command}`")
        made = nodes["acceptance"][at : at + 1]
        yield _Target(settings, node, dump, store.find(made[0]) if made else None)


def _tables(
    settings: Any, nodes: dict[str, list[Node]], read: Sequence[_Target]
) -> Iterator[list[SummaryRow]]:
    dials = _dials(settings)
    if dials:
        yield [row for target in read for row in target.solved(dials)]
    rules = [node.settings["rule"] for node in nodes["certificates"]]
    rules = rules[: len(rules) // len(read)]
    yield [row for target in read for row in target.promised(rules)]


def _dials(settings: Any) -> list[Dial]:
    """Return the dials that are solved: those of `solve.dials`, or that of the engine asked for."""
    engine = settings.solve.engine
    if engine is None:
        return build_dials(settings.solve.dials, "solve.dials")
    given = ENGINES[engine].dial
    return [] if given is None else build_dials([given], f"solve.engine={engine}")


def _write_settings(settings: Any, read: Sequence[_Target]) -> None:
    """Write and print a file for every answer that was found, of the engine asked for."""
    name, directory = settings.solve.engine, Path(settings.outputs) / "engine_settings"
    directory.mkdir(parents=True, exist_ok=True)
    dials = _dials(settings)
    for target in read:
        for length, setting, measured in target.settings(dials[0] if dials else None):
            path = directory / slug(f"{name}-{target.label}-{length}.{ENGINES[name].suffix}")
            text = setting_text(name, setting, measured)
            path.write_text(text, encoding="utf-8")
            print(f"{shown(path)}:\n{text}")


class _Target:
    """The stored steps of a target, and what was accepted of a drafter there."""

    def __init__(self, settings: Any, node: Node, dump: Artifact, made: Artifact | None) -> None:
        from analysis.statistics.bootstrap import PromptBootstrap
        from analysis.statistics.trajectories import Trajectories

        statistics = settings.statistics
        self._asked, self.label = settings.solve, node.settings["label"]
        self._settings, self._path = settings, node.settings["path"]
        self._divergence = settings.certificates.divergence
        self._dist = read_distributions(dump, settings.certificates.temperature)
        position = numbers(dump.read(columns=["position"])["position"])
        self._steps = Trajectories.from_positions(position)
        self._bootstrap = PromptBootstrap(
            self._steps.prompts, statistics.resamples, statistics.confidence, statistics.seed
        )
        self._made = made
        self._solver: Solver | None = None
        self._found: dict[str, list[tuple[Goal, Solution]]] = {}

    def _solutions(self, dial: Dial) -> list[tuple[Goal, Solution]]:
        """Return the goals and the answers of a dial, found once."""
        from analysis.acceptance.solve import Goal, Solver

        if self._solver is None:
            self._solver = Solver(
                self._dist, self._asked.eps, self._bootstrap, self._steps, self._divergence
            )
        if dial.name not in self._found:
            asked = self._asked
            goals = [Goal(share=asked.share), Goal(tokens=asked.tokens)]
            goals += [
                Goal(tokens=asked.tokens, draft_length=length)
                for length in asked.draft_lengths
                if asked.tokens <= length + 1  # a call emits no more
            ]
            found = self._solver.solve(dial, goals)
            self._found[dial.name] = list(zip(goals, found, strict=True))
        return self._found[dial.name]

    def solved(self, dials: Sequence[Dial]) -> Iterator[SummaryRow]:
        """Yield a row a dial and goal."""
        for dial in dials:
            for goal, one in self._solutions(dial):
                yield {
                    "target": self.label,
                    "rule": dial.name,
                    "wanted": _wanted(goal),
                    "parameter": one.parameter,
                    "value": one.value,
                    **dict(zip(limits("value"), (one.ci_low, one.ci_high), strict=True)),
                    "reached": one.reached,
                    "prompts": self._bootstrap.count,
                }

    def settings(self, dial: Dial | None) -> Iterator[tuple[int, Setting, list[str]]]:
        """Yield, by draft length, what an engine is to run, and what was measured of it.

        Without a dial it is strict greedy. A setting is the answer to the tokens wanted at this
        draft length, else to the share of steps; where there is none, none is yielded.
        """
        from analysis.rules import StrictGreedy

        drafter, heat = self._settings.drafter, self._settings.certificates.temperature
        for length in self._asked.draft_lengths:
            rule: Rule = StrictGreedy()
            measured = [
                f"{self.label}: {len(self._steps.prompts)} steps of {self._bootstrap.count} "
                f"prompts; a drafter with a divergence ({self._divergence}) of at most "
                f"{self._asked.eps:g} at every step."
            ]
            if dial is not None:
                found = [
                    (goal, one)
                    for goal, one in self._solutions(dial)
                    if one.value == one.value
                    and goal.draft_length in (length, None)
                    and (goal.tokens is None or goal.draft_length == length)
                ]
                if not found:
                    print(f"{self.label}, drafts of {length}: no setting reaches what is wanted")
                    continue
                goal, one = found[-1]  # tokens at this length, behind the share of steps
                rule = replace(dial.rules[0], **{dial.parameter: _typed(dial, one.value)})
                low, high = one.ci_low, one.ci_high
                interval = f" [{low:.3g}, {high:.3g}]" if low < high else ""
                measured.append(
                    f"Wanted: certified {_wanted(goal)}. {one.parameter} = {one.value:g}{interval} "
                    f"reaches {one.reached:.4g}."
                )
            measured += [
                f"{row['kind'].capitalize()}, drafts of {length}: {row['tokens']:.3g} tokens a call"
                for row in self.promised([rule], [length])
            ]
            yield (
                length,
                Setting(
                    rule,
                    length,
                    self._path,
                    None if drafter is None else drafter.path,
                    drafter is not None and drafter.head is not None,
                    heat,
                ),
                measured,
            )

    def promised(
        self, rules: Sequence[Rule], lengths: Sequence[int | None] | None = None
    ) -> Iterator[SummaryRow]:
        """Yield a row a rule, draft length and kind: certified, and realised where it is known."""
        from analysis.certificates.certify import certify
        from analysis.statistics.calls import calls_made

        found = certify(self._dist, rules, divergence=self._divergence)
        flags = {"certified": found.lower > self._asked.eps}
        accepted = self._accepted([rule.label for rule in rules])
        flags |= {} if accepted is None else {"realised": accepted}
        for draft_length in lengths or (*self._asked.draft_lengths, None):
            for kind, each in flags.items():
                calls = calls_made(each, self._steps, draft_length)
                yield from self._promises(rules, draft_length, kind, calls)

    def _accepted(self, labels: Sequence[str]) -> Any:
        """Return the (N, R) steps at which the rules accepted the drafter; None if not known."""
        import numpy as np

        if self._made is None:
            return None
        table = self._made.read(columns=["rule", "accepted"])
        size = len(self._steps.prompts)  # a rule's rows stand together
        order = [table["rule"][at].as_py() for at in range(0, len(table), size)]
        if not set(labels) <= set(order):  # a setting that was solved
            return None
        accepted = numbers(table["accepted"]).reshape(len(order), size)
        return np.stack([accepted[order.index(label)] for label in labels], axis=1)

    def _promises(
        self, rules: Sequence[Rule], draft_length: int | None, kind: str, calls: Any
    ) -> Iterator[SummaryRow]:
        """Yield the rows of (P, R) calls."""
        import numpy as np

        bootstrap = self._bootstrap
        draws = bootstrap.sums(bootstrap.steps)[:, None] / bootstrap.sums(calls)
        low, high = bootstrap.interval(draws)
        each = np.sort(bootstrap.steps[:, None] / calls, axis=0)
        ranks = {q: max(1, int(np.ceil(q * len(each) - 1e-9))) for q in PROMISED}
        for at, rule in enumerate(rules):
            tokens = float(bootstrap.steps.sum() / calls[:, at].sum())
            limited = (float(low[at]), float(high[at]))
            shares = {f"{100 * q:g} % of prompts": each[rank - 1, at] for q, rank in ranks.items()}
            yield {
                "target": self.label,
                "rule": rule.label,
                "drafts": _length(draft_length),
                "kind": kind,
                "tokens": tokens,
                **dict(zip(limits("tokens"), limited, strict=True)),
                **{name: float(share) for name, share in shares.items()},
                "prompts": bootstrap.count,
            }


def _wanted(goal: Any) -> str:
    if goal.tokens is None:
        return f"{100 * goal.share:g} % of steps"
    return f"{goal.tokens:g} tokens, drafts {_length(goal.draft_length)}"


def _typed(dial: Dial, value: float) -> float:
    """Return a value of a dial's parameter in its type."""
    return type(dial.rules[0].parameters[dial.parameter])(value)


def _length(draft_length: int | None) -> str:
    return "of any length" if draft_length is None else f"of {draft_length}"


if __name__ == "__main__":
    main(sys.argv[1:])
