"""The report's part that holds a target against the paper, at the temperature nearest to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.certificates.certify import certify
from analysis.report.measured import Measured, certificate_statistics, top_statistics
from analysis.report.published import EPS, TABLE2
from analysis.report.records import Part
from analysis.report.sections.published_matched import (
    PAPERS,
    RULES,
    Match,
    compare,
    nearest_temperature,
)
from analysis.report.sections.published_tables import compared_tables, verdict_table
from analysis.report.table import Table
from analysis.rules import Rule
from analysis.statistics.bootstrap import top_probability
from analysis.statistics.run_lengths import run_lengths
from analysis.statistics.trajectories import Trajectories
from pipeline.stages.report.inputs import Target
from pipeline.store import distributions

OPENING = (
    "The paper's Tables 1 to 6 hold its own models on its own prompts. Here each target stands "
    "beside them twice: as it is, and at the temperature at which the probability of its most "
    "probable token is distributed most like the paper's."
)


class Published(NamedTuple):
    """The part, its numbers, and its table that sums them up."""

    part: Part
    compared: pd.DataFrame
    verdict: Table


def published_part(targets: Sequence[Target], measured: Measured) -> Published:
    """Hold every target against the paper."""
    matches = [match for target in targets for match in matches_of(target, measured.rules)]
    compared = compare(measured, matches)
    verdict = verdict_table(compared, matches)
    tables = [verdict, *compared_tables(compared, matches)]
    return Published(Part("Beside the published", tables, [OPENING]), compared, verdict)


def matches_of(target: Target, rules: Sequence[Rule]) -> list[Match]:
    """Match a target with each model of the paper, by the temperatures that are stored."""
    p0 = {
        temperature: distributions.read_top_probabilities(target.dump, temperature)
        for temperature in distributions.stored_temperatures(target.dump)
    }
    nearest = {paper: nearest_temperature(p0, paper) for paper in PAPERS}
    known = {
        temperature: measure_at(target, temperature, [rule for rule in RULES if rule in rules])
        for temperature in sorted(set(nearest.values()))
    }
    return [
        Match(target.label, paper, target.temperature, at, min(p0), max(p0), known[at])
        for paper, at in nearest.items()
    ]


def measure_at(target: Target, temperature: float, rules: Sequence[Rule]) -> Measured:
    """Certify a target's stored distributions at one of their temperatures.

    Args:
        target: whose steps, prompts and resamples are taken.
        temperature: a stored one.
        rules: those the paper has numbers of; run lengths are estimated for those of Table 2.
    """
    top, lower, upper = [], [], []
    for _, dist in distributions.chunks(target.dump, temperature):
        top.append(top_probability(dist, target.ranks))
        if rules:
            found = certify(dist, rules)
            lower.append(found.lower)
            upper.append(found.upper)
    label, bootstrap = target.label, target.bootstrap
    trajectories = Trajectories(np.append(0, np.cumsum(target.lengths)[:-1]), bootstrap.prompts)
    certificates, runs = [], []
    for at, rule in enumerate(rules):
        low, high = (np.concatenate([part[:, at] for part in parts]) for parts in (lower, upper))
        certificates.append(certificate_statistics(label, rule, low, high, bootstrap))
        if rule in TABLE2:
            frame = run_lengths(low, high, EPS, trajectories, bootstrap)
            runs.append(frame.assign(target=label, rule=rule.label))
    return Measured(
        [label],
        rules,
        top_statistics(label, np.concatenate(top), target.ranks, bootstrap),
        together(certificates),
        together(runs),
    )


def together(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return frames of the same columns as one; without any row where there is none."""
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
