"""Stage report: tables, figures and one page that shows them.

Run it with ``python -m pipeline stage=report``.
"""

from __future__ import annotations

from pathlib import Path

from analysis.report.text import limits
from analysis.rules import StrictGreedy
from analysis.rules.build import ParameterRange
from pipeline.errors import PipelineError
from pipeline.plan.rules import judged_by_logs, ranges_of
from pipeline.plan.specs import CostsSpec, EngineSpec, ReportSpec
from pipeline.plan.stage import Request, Stage, SummaryRow
from pipeline.store.artifacts import Artifact
from pipeline.store.node import Node

UPSTREAM = (
    "prompts",
    "distributions",
    "certificates",
    "run_lengths",
    "drafts",
    "acceptance",
    "decoding",
    "accuracy",
)


def check(request: Request) -> None:
    """Check that a report can tell the targets apart by their printed names.

    Raises:
        PipelineError: two have one name.
    """
    labels = [target.label for target in request.config.targets.values()]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None and STAGE.name in request.wanted:
        raise PipelineError(
            f"targets.*.label={twice} is given to two targets: the report needs different names"
        )


def nodes(request: Request) -> list[Node]:
    """Return the planned report; printed names are part of its content.

    Upstream lists follow the order of the targets; certificates are target-major, one a rule.
    """
    config = request.config
    left_out = set() if config.decoding.report else {"decoding"}
    answered = request.nodes["accuracy"]
    shown = bool(answered) and all(map(request.made, answered))
    if not shown:
        left_out.add("accuracy")  # which takes hours, and is not computed for the report's sake
    return [
        Node(
            STAGE.name,
            config.study,
            ReportSpec(
                study=config.study_name or config.study,
                targets=tuple(target.label for target in config.targets.values()),
                drafter=None if config.drafter is None else config.drafter.label,
                rules=tuple(request.rules),
                statistics=request.statistics,
                ranges=_searched(request),
                note=config.note,
                margin=config.accuracy.margin if shown else None,
                engine=_engine_spec(request),
            ),
            {name: tuple(request.nodes[name]) for name in UPSTREAM if name not in left_out},
        )
    ]


def _searched(request: Request) -> tuple[ParameterRange, ...]:
    """The ranges that the page's calculator searches; of a log, those that it can judge."""
    config = request.config
    if STAGE.name not in request.wanted:
        return ()
    logged = config.distributions.source == "logs"
    return tuple(
        each
        for each in ranges_of(config, config.solve.ranges, "solve.ranges", ends=True)
        if not logged or judged_by_logs(each.rules[0])
    )


def _engine_spec(request: Request) -> EngineSpec | None:
    """The costs of the engine of `decoding.costs`; None without a file.

    Raises:
        PipelineError: the file can't be read, or is of a drafter that the study does not have.
    """
    settings = request.config.decoding
    if settings.costs is None or STAGE.name not in request.wanted:
        return None
    from pipeline.engines.costs import read_costs

    costs = read_costs(Path(settings.costs))
    if costs.drafter == "model" and not request.nodes["drafts"]:
        raise PipelineError(
            f"decoding.costs={settings.costs} has the costs of the study's drafter, and the study "
            "has none: add it, for instance drafter=local drafter.path=DIRECTORY"
        )
    steps = tuple(zip(costs.drafted, costs.costs, strict=True))
    return EngineSpec(
        CostsSpec(costs.engine, costs.drafter, steps), settings.lookup, settings.lookup_match
    )


def summary(node: Node[ReportSpec], artifact: Artifact) -> list[SummaryRow]:
    """Return a row a target: its drafter under strict greedy, which loses nothing.

    Of stage acceptance: the accepted and the certified steps, and the tokens a
    call of drafts of any length. Of stage decoding, at the draft length that was fastest at
    temperature 0: the tokens a call, the cost of a drafted token and the speedup. Without a
    drafter: the statistics of Table 2.
    """
    import pandas as pd

    def table(name: str) -> pd.DataFrame:
        file = artifact.directory / f"{name}.csv"
        frame = pd.read_csv(file) if file.is_file() else pd.DataFrame(columns=["target", "rule"])
        return frame[frame["rule"] == StrictGreedy().label]

    accepted = table("tables/acceptance")
    certificates, decoded = table("tables/table2"), table("timings/tables/decoding_speed")
    rows = []
    for target in artifact.record.facts["targets"]:
        row: SummaryRow = {"target": target, "drafter": node.spec.drafter or "none"}
        for frame, name, shown in (
            (certificates if accepted.empty else certificates[:0], "median", "median"),
            (accepted, "acceptance", "accepted"),
            (accepted, "certified", "certified"),
        ):
            if not frame.empty:
                measured = frame[(frame["target"] == target) & (frame["statistic"] == name)].iloc[0]
                ends = (measured["ci_low"], measured["ci_high"])
                row |= {"prompts": int(measured["prompts"]), shown: measured["value"]}
                row |= dict(zip(limits(shown), ends, strict=True))
        if not decoded.empty:
            runs = decoded.query("target == @target and drafter == 'model' and temperature == 0")
            for best in runs.sort_values("speedup").tail(1).to_dict("records"):
                row |= {"γ": int(best["draft_length"]), "tokens_per_call": best["tokens_per_call"]}
                ends = (best["ci_low"], best["ci_high"])
                row |= {"speedup": best["speedup"]} | dict(
                    zip(limits("speedup"), ends, strict=True)
                )
                row["cost"] = best["rho"]
        rows.append(row)
    return rows


STAGE = Stage(
    name="report",
    version=38,
    upstream=UPSTREAM,
    columns={},
    nodes=nodes,
    module=f"{__name__}.compute",
    check=check,
    summary=summary,
)
