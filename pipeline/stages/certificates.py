"""Stage certificates: certificates of many rules on a target's distributions, in one pass.

Run it with ``python -m pipeline stage=certificates``; of another divergence than KL with
``certificates.divergence=tv``.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from analysis.report.text import limits, upper_end
from pipeline.errors import PipelineError
from pipeline.plan.slices import bootstrap_settings, rule_slice, statistics_slice
from pipeline.plan.stage import Request, Stage, SummaryRow
from pipeline.store.columns import STEP
from pipeline.store.node import Node

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from analysis.rules import Rule
    from analysis.topk import TopK
    from pipeline.store.artifacts import Artifact, Pending

T = TypeVar("T")
GROUPS = 1000  # row groups of a file, whose footer is in memory while it is written


def check(request: Request) -> None:
    """Check that certificates can be had in the divergence that is asked for.

    Raises:
        PipelineError: there is none of that name, or the report, which is about KL, is asked for.
    """
    divergence = request.config.certificates.divergence
    try:
        label = named(divergence)
    except ValueError as error:
        raise PipelineError(f"certificates.{error}") from None
    if label != "kl" and "report" in request.asked:
        raise PipelineError(
            f"certificates.divergence={divergence} is not for stage=report, whose tables are about "
            "KL (table divergences has the others): give kl, or stage=certificates"
        )


def named(divergence: str) -> str:
    """Return the one name of a divergence; KL, the default, needs no compiled code to be known."""
    if divergence == "kl":
        return divergence
    from analysis.certificates.divergences import Divergence

    return Divergence.named(divergence).label


def nodes(request: Request) -> list[Node]:
    """The certificates of every rule on each target's distributions, target by target.

    The divergence is a part of what determines them where it is not KL.
    """
    config = request.config
    divergence = named(config.certificates.divergence)
    other = {} if divergence == "kl" else {"divergence": divergence}
    return [
        Node(
            STAGE.name,
            rule.label,
            rule_slice(rule) | {"temperature": config.certificates.temperature} | other,
            {"distributions": (distributions,)},
            settings={"rule": rule, "threads": config.device.threads, **statistics_slice(config)},
        )
        for distributions in request.nodes["distributions"]
        for rule in request.rules
    ]


def compute(nodes: list[Node], upstream: dict[str, list[Artifact]], pending: list[Pending]) -> None:
    """Certify the distributions under the rule of every node, each into its own artifact."""
    from pipeline.execution.threads import stream_threads
    from pipeline.store import columns, distributions

    rules = [node.settings["rule"] for node in nodes]
    source = upstream["distributions"][0]
    check_logged(rules, source)
    schema = columns.schema("certificates")
    with ExitStack() as stack:
        write_certificates(
            distributions.chunks(source, nodes[0].config["temperature"]),
            rules,
            nodes[0].config.get("divergence", "kl"),
            [stack.enter_context(made.writer("data", schema)) for made in pending],
            source.record["rows"]["data"],
            stream_threads(nodes[0].settings.get("threads")),
        )


def write_certificates(
    chunks: Iterable[tuple[pa.RecordBatch, TopK]],
    rules: Sequence[Rule],
    divergence: str,
    writers: Sequence[Any],
    steps: int,
    threads: int,
) -> None:
    """Certify a stream of distributions, and write it under each rule, in the stream's order.

    Args:
        chunks: prompt_id and position of some steps, and their distributions.
        rules: what is certified.
        divergence: of target and draft.
        writers: of the files, one a rule.
        steps: in all chunks. A file has no more than about GROUPS row groups, however many.
        threads: that certify chunks, and write files.

    Raises:
        PipelineError: a user's rule fails.
    """
    import pyarrow as pa

    from analysis.certificates.certify import certify
    from pipeline.execution.threads import in_order
    from pipeline.store import columns
    from pipeline.store.distributions import ROWS

    schema = columns.schema("certificates")

    def batches(chunk: tuple[pa.RecordBatch, TopK]) -> list[pa.RecordBatch]:
        place, dist = chunk
        try:
            result = certify(dist, rules, divergence=divergence)
        except ValueError as error:  # of a user's rule: those of the project are checked before
            raise PipelineError(f"criteria: {error}") from error
        found = []
        for at in range(len(rules)):
            count = result.accepted_count[:, at]
            arrays = [
                *place.columns,
                pa.array(result.lower[:, at]),
                pa.array(result.upper[:, at]),
                pa.array(result.active_size[:, at]),
                pa.array(count, mask=count <= 0),
            ]
            found.append(pa.record_batch(arrays, schema=schema))
        return found

    def write(at: int, group: list[list[pa.RecordBatch]]) -> None:
        table = pa.Table.from_batches([found[at] for found in group])
        writers[at].write_table(table, row_group_size=len(table))

    with ThreadPoolExecutor(threads, "write") as pool:
        for group in grouped(in_order(batches, chunks, threads), 1 + steps // (GROUPS * ROWS)):
            list(pool.map(partial(write, group=group), range(len(writers))))


def grouped(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of `size` items, the last one shorter."""
    several = iter(items)
    while group := list(islice(several, size)):
        yield group


def check_logged(rules: Sequence[Rule], source: Artifact) -> None:
    """Check that an engine's log has enough log-probabilities a step for the rules.

    Raises:
        PipelineError: it has fewer.
    """
    facts = source.record["facts"]
    for rule in rules if "log_prob_error" in facts else ():
        if rule.minimum_k > facts["k"]:
            raise PipelineError(
                f"{facts['log']} has {facts['k']} log-probabilities a step, and {rule.label} needs "
                f"{rule.minimum_k}: ask the engine for more, or give other rules (criteria=greedy)"
            )


def summary(node: Node, artifact: Artifact) -> list[SummaryRow]:
    """One row: the statistics of a rule's certificates, the ceiling for those that are empty."""
    import numpy as np

    from analysis.certificates.divergences import Divergence
    from analysis.statistics.bootstrap import PromptBootstrap, summarise
    from analysis.statistics.trajectories import Trajectories

    rule = node.settings["rule"]
    table = artifact.read(columns=["position", "lower", "upper"])
    lower, upper = (table.column(name).to_numpy() for name in ("lower", "upper"))
    divergence = node.config.get("divergence", "kl")
    shares = {"empty": float(np.mean(np.isinf(lower))), "inexact": float(np.mean(lower < upper))}
    ceiling = Divergence.named(divergence).ceiling_of(rule)
    lower, upper = (np.where(np.isinf(end), ceiling, end) for end in (lower, upper))
    prompts = Trajectories.from_positions(table.column("position").to_numpy()).prompts
    bootstrap = PromptBootstrap(prompts, *bootstrap_settings(node.settings))
    row: SummaryRow = {
        "target": node.upstream["distributions"][0].settings["label"],
        "rule": rule.label,
        "steps": len(lower),
        "prompts": bootstrap.count,
        **({} if divergence == "kl" else {"divergence": divergence}),
    }
    for name, found in summarise(lower, upper, ceiling, bootstrap).items():
        row[name], row[upper_end(name)] = found["value"], found["optimistic"]
        row |= dict(zip(limits(name), (found["ci_low"], found["ci_high"]), strict=True))
    return [row | shares]


STAGE = Stage(
    name="certificates",
    version=3,
    upstream=("distributions",),
    columns={
        "data": STEP
        | {
            "lower": "float64",
            "upper": "float64",
            "active_size": "int32",
            "accepted_count": "int32",
        }
    },
    nodes=nodes,
    check=check,
    module=__name__,
    summary=summary,
    printed=True,
    joint=True,
)
