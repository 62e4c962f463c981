"""Two pages of /metrics, of a server without drafts and of one with them: what drafting gains.

With s0 and s1 seconds a token and tau tokens a pass with drafts, a step with drafts costs
tau s1 / s0 passes without, and decoding is s0 / s1 times as fast. No model is read. The servers
must have answered the same requests at the same load: seconds are those of requests, added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.errors import PipelineError
from pipeline.formats.engine_answers import read_bytes
from pipeline.formats.engine_pages import EnginePage, is_page, read_page
from pipeline.plan.stage import SummaryRow

ODD_SHARE = 0.1  # of the tokens, by which two pages of the same requests may differ


def compare_pages(paths: Sequence[Path]) -> tuple[list[SummaryRow], str]:
    """Return a row a page, and the verdict in a sentence.

    Args:
        paths: of the page without drafts, and of the one with them.

    Raises:
        PipelineError: a file is no page, or is not the one that it should be; names it.
    """
    pages = [_read(path) for path in paths]
    base, drafted = pages
    if base.drafts:
        raise PipelineError(
            f"{paths[0]} counts {base.drafts:g} drafts: give the page of a server without drafts "
            "first, and of one with drafts second"
        )
    if not drafted.drafts:
        raise PipelineError(
            f"{paths[1]} counts no drafts: start the second server with a drafter, and let it "
            "answer the same requests"
        )
    if base.engine != drafted.engine:
        raise PipelineError(
            f"{paths[0]} is of {base.engine} and {paths[1]} of {drafted.engine}: give two of one"
        )
    s0, s1 = (page.seconds / page.emitted for page in pages)
    tokens = drafted.emitted / drafted.passes
    cost = drafted.seconds / drafted.passes / (base.seconds / base.passes)
    speed = s0 / s1
    rows: list[SummaryRow] = [
        {
            "page": str(path),
            "tokens": page.emitted,
            "passes": page.passes,
            "tokens_per_pass": page.emitted / page.passes,
            "seconds_per_token": page.seconds / page.emitted,
            "seconds_per_pass": page.seconds / page.passes,
        }
        for path, page in zip(paths, pages, strict=True)
    ]
    rows[1] |= {
        "tokens_per_drafting_call": 1 + drafted.accepted / drafted.drafts,
        "step_cost": cost,
        "speedup": speed,
    }
    verdict = "drafting pays" if speed > 1 else "drafting does not pay"
    sentence = (
        f"{tokens:.2f} tokens a pass, and a step costs {cost:.2f} passes: {speed:.2f} times as "
        f"fast, {verdict}"
    )
    if abs(drafted.emitted - base.emitted) > ODD_SHARE * base.emitted:
        sentence += (
            f" (the pages count {base.emitted:g} and {drafted.emitted:g} tokens: send both servers "
            "the same requests)"
        )
    return rows, sentence


def _read(path: Path) -> EnginePage:
    text = read_bytes(path).decode("utf-8", errors="replace")
    if not is_page(text):
        raise PipelineError(f"{path} is no page of /metrics: two files must be pages")
    page = read_page(path, text)
    if not (page.passes > 0 and page.emitted > 0 and page.seconds > 0):
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
