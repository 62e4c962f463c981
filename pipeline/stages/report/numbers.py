"""The numbers of the report as LaTeX macros, for use inside a text."""

from __future__ import annotations

from analysis.report.escape import latex, macro
from analysis.report.measured import Measured
from analysis.report.text import certificate_text, run_text, share_text
from analysis.statistics.run_lengths import censored_ends
from pipeline.errors import PipelineError


def macros(measured: Measured) -> str:
    r"""Return one \newcommand a number: \<Target><Rule><Statistic>, digits spelled out."""
    found: dict[str, str] = {}
    for names, text in _numbers(measured):
        name = macro(*names)
        if name in found:
            raise PipelineError(
                f"targets.*.label: {' and '.join(measured.targets)} give the macro "
                f"\\{name} twice: choose labels that differ in their letters"
            )
        found[name] = text
    lines = [f"\\newcommand{{\\{name}}}{{{latex(text)}}}" for name, text in found.items()]
    return "\n".join(["% names spell digits: p5 is PFive, 0.1 is ZeroPointOne", *lines, ""])


def _numbers(measured: Measured) -> list[tuple[tuple[str, ...], str]]:
    numbers: list[tuple[tuple[str, ...], str]] = [
        ((row["target"], f"top {row['k']}", row["statistic"]), f"{row['value']:.3f}")
        for row in measured.top.to_dict("records")
    ]
    ceilings = {rule.label: rule.ceiling for rule in measured.rules}
    for row in measured.certificates.to_dict("records"):
        target, rule = row["target"], row["rule"]
        numbers.append(
            (
                (target, rule, row["statistic"]),
                certificate_text(row["value"], row["optimistic"], ceilings[rule]),
            )
        )
        if row["statistic"] == "mean":
            numbers += [
                ((target, rule, "empty"), share_text(row["empty"])),
                ((target, rule, "inexact"), share_text(row["inexact"])),
            ]
            if rule == measured.rules[0].label:
                numbers += [
                    ((target, "prompts"), str(row["prompts"])),
                    ((target, "steps"), str(row["steps"])),
                ]
    for row in measured.runs.to_dict("records"):
        if row["estimator"] == "per_call":
            numbers.append(
                (
                    (row["target"], row["rule"], f"run {row['eps']:g}"),
                    run_text(row["value"], row["optimistic"], censored_ends(row)),
                )
            )
    return numbers
