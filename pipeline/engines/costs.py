"""The cost of a step in an engine, from pages of /metrics: without drafts, and with some lengths.

With s0 and s1 seconds a token and tau tokens a pass with drafts, a pass with drafts costs
tau s1 / s0 passes without, and decoding is s0 / s1 times as fast. No model is read. The servers
must have answered the same requests at the same load: seconds are those of requests, added up.

A file is a page, or the answers that `pipeline.ask` saved: then only their requests count, the
difference of the pages before and after them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field, TypeAdapter
from pydantic import ValidationError as FieldsError

from analysis.acceptance.engine_speed import PassSums, StepCosts
from conf.schema import Config
from pipeline.engines.written.answers import read_bytes
from pipeline.engines.written.pages import EnginePage, is_page, read_page
from pipeline.errors import PipelineError
from pipeline.plan.stage import SummaryRow

ODD_SHARE = 0.1  # of the tokens, by which runs of the same requests may differ
FEW_DRAFTS = 0.1  # of the passes: with fewer, a step's cost is a small difference of large sums
ASK, AGAIN = "`python -m pipeline.ask URL`", "ask it again (ask.name=NAME)"
COUNTED = ("drafts", "drafted", "accepted", "passes", "emitted", "seconds")
Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, strict=True)]
Drafter = Literal["model", "prompt_lookup"]
T = TypeVar("T")


@dataclass(frozen=True)
class CostsFile:
    """The content of a file of costs, as `write_costs` writes it.

    Attributes:
        engine: name, version and load.
        drafter: what drafted.
        steps: (drafted tokens, cost) in passes of the target alone, by drafted tokens.
    """

    engine: Name
    drafter: Drafter
    steps: Annotated[list[tuple[Above0, Above0]], Field(min_length=1)]


@dataclass(frozen=True)
class AskedRun:
    """The facts that costs need of the record beside answers, which `pipeline.ask` writes.

    Attributes:
        engine: its name.
        version: empty where the engine does not say.
        concurrent: requests at once.
        answers_of_pages: answers given between the two pages.
    """

    engine: Name
    version: Annotated[str, Field(strict=True)]
    concurrent: Annotated[int, Field(ge=1, strict=True)]
    answers_of_pages: Annotated[int, Field(ge=0, strict=True)]


def _read(path: Path, kind: type[T], key: str, advice: str) -> T:
    """Return the content of a JSON file; errors begin with `key` and end with `advice`."""
    try:
        return TypeAdapter(kind).validate_json(read_bytes(path))
    except PipelineError as error:
        raise PipelineError(f"{key}{error}; {advice}") from error
    except FieldsError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise PipelineError(f"{key}{path}: {place}: {first['msg'].lower()}; {advice}") from error


def read_costs(path: Path) -> StepCosts:
    """Return the costs in a file.

    Raises:
        PipelineError: it can't be read, or is none.
    """
    written = "a file of costs is written by `python -m pipeline.reconcile ALONE DRAFTED ...`"
    content = _read(path, CostsFile, "decoding.costs=", written)
    drafted, costs = zip(*sorted(content.steps), strict=True)
    if len(set(drafted)) < len(drafted):
        raise PipelineError(f"decoding.costs={path}: steps gives one number of tokens twice")
    return StepCosts(content.engine, content.drafter, (0.0, *drafted), (1.0, *costs))


def costs_of(settings: Config) -> StepCosts | None:
    """Return the costs of `decoding.costs`; None where it names no file.

    Raises:
        PipelineError: it can't be read, or is none.
    """
    file = settings.decoding.costs
    return None if file is None else read_costs(Path(file))


def write_costs(path: Path, costs: StepCosts) -> None:
    """Write a file that `read_costs` reads."""
    steps = [list(step) for step in zip(costs.drafted[1:], costs.costs[1:], strict=True)]
    content = {"engine": costs.engine, "drafter": costs.drafter, "steps": steps}
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def measure_costs(paths: Sequence[Path], drafter: str) -> tuple[list[SummaryRow], str, StepCosts]:
    """Return a row a run, the verdict of each run with drafts in words, and the costs of a step.

    Args:
        paths: of the run without drafts, and of runs with them.
        drafter: what drafted in these: `model` or `prompt_lookup`.

    Raises:
        PipelineError: a file is no page, or is not of the run that it should be; names it.
    """
    runs = [read_run(path) for path in paths]
    base, base_path = runs[0], paths[0]
    if base.drafts:
        raise PipelineError(
            f"{base_path} counts {base.drafts:g} drafts: give the page of a server without drafts "
            "first, and those of servers with drafts behind it"
        )
    rows, sentences = [_row(base_path, base)], list[str]()
    points: dict[float, float] = {}
    for path, run in zip(paths[1:], runs[1:], strict=True):
        if not run.drafts:
            raise PipelineError(
                f"{path} counts no drafts: start this server with a drafter, and let it answer the "
                "same requests"
            )
        if base.engine != run.engine:
            raise PipelineError(
                f"{base_path} is of {base.engine} and {path} of {run.engine}: give those of one"
            )
        drafted, cost = _sums(run).step_cost(_sums(base))
        if cost <= 0 or drafted in points:
            raise PipelineError(
                f"{path}: a step with {drafted:g} drafted tokens would cost {cost:.2f} passes"
                + (", and another file has the same length" if drafted in points else "")
                + ": ask the servers again, on an idle machine and with more prompts"
            )
        points[drafted] = cost
        rows.append(_row(path, run) | _gain(base, run) | {"drafted": drafted, "draft_cost": cost})
        sentences.append(_sentence(path, base, run))
    drafted_tokens, costs = zip(*sorted(points.items()), strict=True)
    name = _engine(base_path, base)
    steps = StepCosts(name, drafter, (0.0, *drafted_tokens), (1.0, *costs))
    return rows, "\n".join(sentences), steps


def _row(path: Path, page: EnginePage) -> SummaryRow:
    return {
        "page": str(path),
        "tokens": page.emitted,
        "passes": page.passes,
        "tokens_per_pass": page.emitted / page.passes,
        "seconds_per_token": page.seconds / page.emitted,
        "seconds_per_pass": page.seconds / page.passes,
    }


def _gain(base: EnginePage, run: EnginePage) -> SummaryRow:
    """Return the gain of drafts: the mean cost of a pass, and the speed-up."""
    return {
        "tokens_per_drafting_call": 1 + run.accepted / run.drafts,
        "step_cost": run.seconds / run.passes / (base.seconds / base.passes),
        "speedup": base.seconds / base.emitted / (run.seconds / run.emitted),
    }


def _sentence(path: Path, base: EnginePage, run: EnginePage) -> str:
    gain = _gain(base, run)
    verdict = "drafting pays" if gain["speedup"] > 1 else "drafting does not pay"
    text = (
        f"{path.name}: {run.emitted / run.passes:.2f} tokens a pass, and a pass costs "
        f"{gain['step_cost']:.2f} without drafts: {gain['speedup']:.2f} times as fast, {verdict}"
    )
    if abs(run.emitted - base.emitted) > ODD_SHARE * base.emitted:
        text += (
            f" (the runs emit {base.emitted:g} and {run.emitted:g} tokens: send both servers the "
            "same requests)"
        )
    if run.drafts < FEW_DRAFTS * run.passes:
        text += (
            f" (only {run.drafts:g} of {run.passes:g} passes had a draft: the cost of a step with "
            "one is uncertain)"
        )
    return text


def _sums(page: EnginePage) -> PassSums:
    return PassSums(page.passes, page.drafts, page.drafted, page.seconds)


def _engine(path: Path, page: EnginePage) -> str:
    """Return engine, version and load as a verdict names them."""
    if path.suffix != ".jsonl":
        return page.engine
    about = _about(path)
    load = "one request" if about.concurrent == 1 else f"{about.concurrent} requests"
    return f"{about.engine} {about.version}, {load} at once"


def _about(path: Path) -> AskedRun:
    """Return the record that `pipeline.ask` wrote beside answers.

    Raises:
        PipelineError: it can't be read, or is none.
    """
    return _read(path.with_suffix(".json"), AskedRun, "", f"{ASK} writes this file: {AGAIN}")


def has_pages(path: Path, answers: int | None = None) -> bool:
    """Whether answers have the pages beside them between which they were given.

    Where they were asked for in several runs, the pages cover the last one only: with `answers`,
    all must be covered.
    """
    if path.suffix != ".jsonl" or not all(file.is_file() for file in _beside(path)):
        return False
    return answers is None or _about(path).answers_of_pages == answers


def _beside(path: Path) -> list[Path]:
    """Return the files that `pipeline.ask` writes beside answers: both pages, and the record."""
    return [path.with_suffix(suffix) for suffix in (".before.txt", ".after.txt", ".json")]


def read_run(path: Path) -> EnginePage:
    """Return the sums of a page, or those of the requests between two.

    llama.cpp counts the pass over each prompt, and the token from it, too.
    """
    if path.suffix != ".jsonl":
        return _page(path)
    if not has_pages(path):
        raise PipelineError(
            f"{path} is no page of /metrics, and has none beside it: give a page, or answers that "
            f"{ASK} saved of a server with one"
        )
    first, last, _ = _beside(path)
    before, after = _page(first, begun=False), _page(last, begun=False)
    spent = {name: getattr(after, name) - getattr(before, name) for name in COUNTED}
    prompts = _about(path).answers_of_pages if after.engine == "llama.cpp" else 0
    spent["passes"] -= prompts
    spent["emitted"] -= prompts
    if min(spent.values()) < 0:
        raise PipelineError(
            f"{last} counts less than {first.name}: the server was started again in between; "
            f"{AGAIN}"
        )
    if not min(spent[name] for name in ("passes", "emitted", "seconds")):
        raise PipelineError(
            f"{last}: since {first.name} no answer got a second token, and only the passes for "
            "those are timed: ask for longer answers (distributions.steps=N ask.name=NAME)"
        )
    return replace(after, **spent)


def _page(path: Path, *, begun: bool = True) -> EnginePage:
    """Return the sums of a page, none of them missing; `begun` if none may be 0 either."""
    text = read_bytes(path).decode("utf-8", errors="replace")
    if not is_page(text):
        raise PipelineError(f"{path} is no page of /metrics: several files must be pages")
    page = read_page(path, text)
    timed = page.passes, page.emitted, page.seconds
    if any(math.isnan(value) or (begun and not value > 0) for value in timed):
        needed = (
            "inter_token_latency_seconds, generation_tokens_total and time_to_first_token_seconds"
            if page.engine == "vLLM"
            else "n_decode_total, tokens_predicted_total and tokens_predicted_seconds_total"
        )
        raise PipelineError(
            f"{path} does not say how long its passes took ({needed}): let the server answer, and "
            "give its whole page"
        )
    return page
