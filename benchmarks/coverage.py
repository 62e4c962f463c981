"""How often 95 % intervals over prompts hold the truth, in simulated studies.

``python -m benchmarks.coverage`` draws 1,000 studies of 6, 10, 30 and 100 prompts from laws whose
truth is known, computes the project's intervals, and prints a table (CSV) of how often they hold
it: `coverage`, beside that of a bootstrap without the widening for few prompts, `plain`. Rows named
`wrong` count studies in which a method that is no faster is called surely faster. It takes about
ten minutes on one core; ``STUDIES`` may follow.

- mean, share, p5: 64 steps a prompt, normal, half of the variance between prompts; share: of steps
  above -0.5; mean, heavy tails: prompts are log-normal (sigma = 1).
- ratio: of the sums of a and b over prompts, b gamma with shape 4, a / b log-normal (sigma = 0.3).
- six methods, each as fast as the target alone. Their seconds of a prompt share a log-normal
  factor (sigma = 0.1) and have one of their own, with a standard deviation of 0.15: normal, or with
  heavy tails (Student's t with 3 degrees of freedom). all: each of the six intervals holds 1;
  fastest: that of the method measured fastest does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import norm

from analysis.decoding.speed import speed_bootstrap, speedups
from analysis.report.table import csv_text
from analysis.statistics.bootstrap import PromptBootstrap, Resampling
from analysis.topk import Floats

PROMPTS = (6, 10, 30, 100)
STUDIES = 1000
STEPS = 64  # of a prompt
METHODS = 6
STATISTICS = Resampling(1000, 0.95, 0)
THRESHOLD = -0.5  # of the share
PLAIN = 10**9  # prompts, of which intervals are not widened
Held = tuple[str, bool, bool]  # quantity; whether the interval holds the truth, and the plain one
Ends = tuple[Any, Any]  # of an interval


def main(arguments: list[str]) -> None:
    """Print the table."""
    studies = int(arguments[0]) if arguments else STUDIES
    rows = []
    for prompts in PROMPTS:
        held = pd.DataFrame(
            [row for study in range(studies) for row in simulated(prompts, study)],
            columns=["quantity", "coverage", "plain"],
        )
        shares = held.groupby("quantity", sort=False).mean().reset_index()
        rows.append(shares.assign(prompts=prompts, studies=studies))
        print(f"{prompts} prompts: done", file=sys.stderr)
    table = pd.concat(rows).sort_values("prompts", kind="stable")
    table = table[["quantity", "prompts", "coverage", "plain", "studies"]]
    print(csv_text(table, "%.3f"), end="")


def simulated(prompts: int, study: int) -> Iterator[Held]:
    """Yield whether the intervals of one study hold the truth."""
    rng = np.random.default_rng([prompts, study])
    yield from _of_steps(prompts, study, rng)
    yield from _of_methods("", rng.standard_normal((prompts, METHODS)), study, rng)
    heavy = rng.standard_t(3, (prompts, METHODS)) / np.sqrt(3)  # of variance 1, too
    yield from _of_methods(", heavy tails", heavy, study, rng)


def _of_steps(prompts: int, study: int, rng: np.random.Generator) -> Iterator[Held]:
    owner = np.repeat(np.arange(prompts), STEPS)
    of_prompt = rng.normal(0, np.sqrt(0.5), prompts)
    steps = of_prompt[owner] + rng.normal(0, np.sqrt(0.5), len(owner))
    skewed = np.exp(rng.standard_normal(prompts))
    b = rng.gamma(4, 1, prompts)
    a = b * np.exp(0.3 * rng.standard_normal(prompts))
    sampled = PromptBootstrap(owner, *STATISTICS._replace(seed=study))
    _, fifths = sampled.quantiles(steps, [0.05])

    def intervals() -> Iterator[tuple[str, float, Ends]]:
        yield "mean", 0.0, sampled.ratio_interval(steps)[1:]
        yield "mean, heavy tails", float(np.exp(0.5)), sampled.ratio(skewed, np.ones(prompts))[1:]
        yield "share", float(norm.sf(THRESHOLD)), sampled.ratio_interval(steps > THRESHOLD)[1:]
        yield "p5", float(norm.ppf(0.05)), sampled.interval(fifths[:, 0])
        yield "ratio", float(np.exp(0.3**2 / 2)), sampled.ratio(a, b)[1:]

    widened = [(name, bool(low <= truth <= high)) for name, truth, (low, high) in intervals()]
    sampled.tail = (1 - STATISTICS.confidence) / 2
    plain = [bool(low <= truth <= high) for _, truth, (low, high) in intervals()]
    for (name, held), held_plain in zip(widened, plain, strict=True):
        yield name, held, held_plain


def _of_methods(law: str, noise: Floats, study: int, rng: np.random.Generator) -> Iterator[Held]:
    prompts = len(noise)
    shared = np.exp(0.1 * rng.standard_normal((prompts, 1)) - 0.1**2 / 2)  # of mean 1
    seconds = np.column_stack([np.ones(prompts), shared * (1 + 0.15 * np.clip(noise, -6, 6))])
    sampled = speed_bootstrap(prompts, *STATISTICS._replace(seed=study))
    found = []
    for widened_for in (prompts, PLAIN):
        sampled.count = widened_for
        together = [range(1, METHODS + 1)]
        times = speedups(seconds, np.ones_like(seconds), [0] * (METHODS + 1), together, sampled)
        speed, low, high = (numbers[1:] for numbers in times)
        held = (low <= 1) & (high >= 1)
        found.append((bool(held.all()), bool(held[speed.argmax()]), bool((low > 1).any())))
    names = ("six methods, all", "six methods, fastest", "six methods, wrong")
    for name, held, held_plain in zip(names, *found, strict=True):
        yield f"{name}{law}", held, held_plain


if __name__ == "__main__":
    main(sys.argv[1:])
