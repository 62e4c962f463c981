"""Stage certificates: certificates of many rules on a target's distributions, in one pass.

Run it with ``python -m pipeline stage=certificates``.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from analysis.report.text import limits
from pipeline.criteria import mistakes
from pipeline.errors import PipelineError
from pipeline.plan.specs import CertificatesSpec
from pipeline.plan.stage import Request, Stage, SummaryRow
from pipeline.store.columns import STEP, Column
from pipeline.store.node import Node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from analysis.rules import Rule
    from pipeline.store.artifacts import Artifact, Pending

    CertificatesNode = Node[CertificatesSpec]


def nodes(request: Request) -> list[Node]:
    """Return one planned artifact for each rule and target, target by target."""
    return [
        Node(
            STAGE.name,
            rule.label,
            CertificatesSpec(rule, request.statistics),
            {"distributions": (distributions,)},
        )
        for distributions in request.nodes["distributions"]
        for rule in request.rules
    ]


def compute(
    nodes: list[CertificatesNode], upstream: dict[str, list[Artifact]], pending: list[Pending]
) -> None:
    """Certify the distributions under the rule of every node, each into its own artifact.

    Raises:
        PipelineError: a log has too few tokens for a rule, or a user's rule fails.
    """
    import pyarrow as pa

    from analysis.certificates.certify import certify
    from pipeline.store import columns, distributions

    rules = [node.spec.rule for node in nodes]
    source = upstream["distributions"][0]
    check_logged(rules, source)
    schema = columns.schema("certificates")
    with ExitStack() as stack:
        writers = [stack.enter_context(made.writer("data", schema)) for made in pending]
        for place, dist in distributions.chunks(source):
            with mistakes(rules):
                result = certify(dist, rules)
            for at, writer in enumerate(writers):
                count = result.accepted_count[:, at]
                arrays = [
                    *place.columns,
                    pa.array(result.lower[:, at]),
                    pa.array(result.upper[:, at]),
                    pa.array(result.active_size[:, at]),
                    pa.array(count, mask=count <= 0),
                ]
                writer.write_batch(pa.record_batch(arrays, schema=schema))


def check_logged(rules: Sequence[Rule], source: Artifact) -> None:
    """Check that an engine's log has enough log-probabilities a step for the rules.

    Raises:
        PipelineError: it has fewer.
    """
    from pipeline.store.distributions import StoredFacts

    facts = source.facts(StoredFacts)
    for rule in () if facts.log is None else rules:
        if rule.minimum_k > facts.k:
            raise PipelineError(
                f"{facts.log} has {facts.k} log-probabilities a step, and {rule.label} needs "
                f"{rule.minimum_k}: ask the engine for more, or give other rules (criteria=greedy)"
            )


def summary(node: CertificatesNode, artifact: Artifact) -> list[SummaryRow]:
    """One row: the statistics of a rule's certificates, the ceiling for those that are empty."""
    import numpy as np

    from analysis.statistics.bootstrap import PromptBootstrap, summarise
    from analysis.statistics.trajectories import Trajectories

    rule = node.spec.rule
    table = artifact.read(columns=["position", "lower", "upper"])
    lower, upper = (table.column(name).to_numpy() for name in ("lower", "upper"))
    shares = {"empty": float(np.mean(np.isinf(lower))), "inexact": float(np.mean(lower < upper))}
    lower = np.where(np.isinf(lower), rule.ceiling, lower)
    prompts = Trajectories.from_positions(table.column("position").to_numpy()).prompts
    bootstrap = PromptBootstrap(prompts, *node.spec.statistics)
    row: SummaryRow = {
        "target": node.upstream["distributions"][0].spec.label,
        "rule": rule.label,
        "steps": len(lower),
        "prompts": bootstrap.count,
    }
    for name, statistics in summarise(lower, rule.ceiling, bootstrap).items():
        row[name] = statistics["value"]
        row |= dict(zip(limits(name), (statistics["ci_low"], statistics["ci_high"]), strict=True))
    return [row | shares]


STAGE = Stage(
    name="certificates",
    version=4,
    upstream=("distributions",),
    columns={
        "data": STEP
        | {
            "lower": Column(
                "float64", "the certificate is at least this; +inf: nothing is rejected"
            ),
            "upper": Column("float64", "and at most this; equal to lower when it is exact"),
            "active_size": Column("int32", "tokens whose p the closest rejected draft changes"),
            "accepted_count": Column("int32", "accepted ranks n; null for trees or when unknown"),
        }
    },
    nodes=nodes,
    module=__name__,
    summary=summary,
    printed=True,
    joint=True,
)
