"""What one answer of an engine counted of the drafts that it took.

SGLang writes it in `meta_info` (its own endpoint, or of a choice) or `sglext.spec_tokens_details`,
vLLM in `metrics.speculative_decoding`, llama.cpp in `timings`. Names changed between versions; all
are read. A histogram counts the calls that accepted 0, 1, ... tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.formats.engine_answers import FormatError

SGLANG = {  # counts of an answer, under the names of its versions
    "calls": ("spec_verify_ct",),
    "drafted": ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num"),
    "accepted": ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num"),
    "histogram": ("spec_correct_drafts_histogram", "spec_accept_histogram"),
}
VLLM = {
    "calls": ("num_spec_steps",),
    "drafted": ("num_draft_tokens",),
    "accepted": ("num_accepted_draft_tokens",),
    "histogram": ("acceptance_histogram",),
}
LLAMA = {"drafted": ("draft_n",), "accepted": ("draft_n_accepted",)}


def request_of(body: Mapping[str, Any], custom: Any) -> tuple[str | None, dict[str, Any] | None]:
    """Return the id of an answer, and what it says of drafts; None where it says nothing.

    What it says is a mapping: engine, model, calls, drafted, accepted and by_place.

    Raises:
        FormatError: a number is missing, is no count, or contradicts the histogram.
    """

    def inside(*names: str) -> Mapping[str, Any]:
        held: Any = body
        for name in names:
            held = held.get(name) if isinstance(held, Mapping) else None
        return held if isinstance(held, Mapping) else {}

    choices = body.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else {}
    of_choice = first.get("meta_info") if isinstance(first, Mapping) else None
    held = inside("meta_info") or of_choice or inside("sglext", "spec_tokens_details")
    sglang = held if isinstance(held, Mapping) else {}
    vllm, timings = inside("metrics", "speculative_decoding"), inside("timings")
    name = custom or body.get("id") or sglang.get("id")
    if sglang.get("spec_verify_ct"):
        said = {"engine": "SGLang", **_said(sglang, SGLANG)}
    elif vllm.get("num_spec_steps"):
        said = {"engine": "vLLM", **_said(vllm, VLLM)}
    elif timings.get("draft_n"):
        said = {"engine": "llama.cpp", "calls": math.nan, **_said(timings, LLAMA)}
    else:
        return name, None
    return name, {"model": body.get("model"), **said}


def _said(info: Mapping[str, Any], names: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the counts of an answer, each under the first of its names that is there."""
    said: dict[str, Any] = {"by_place": None}
    for what, known in names.items():
        name = next((name for name in known if info.get(name) is not None), None)
        if what == "histogram":
            if name is not None:
                said["by_place"] = _places(info[name], said["calls"], said["accepted"])
        elif name is None:
            raise FormatError(f"lacks {known[0]}")
        elif type(info[name]) is not int or info[name] < 0:
            raise FormatError(
                f"has {name}={info[name]!r}: a whole number of at least 0 was expected"
            )
        else:
            said[what] = info[name]
    return said


def _places(histogram: Any, calls: int, accepted: int) -> list[int]:
    if not isinstance(histogram, list) or not all(type(n) is int and n >= 0 for n in histogram):
        raise FormatError(f"has the histogram {histogram!r}: a list of counts was expected")
    by_place = [sum(histogram[place:]) for place in range(1, len(histogram))]
    if sum(histogram) != calls or sum(by_place) != accepted:
        raise FormatError(
            f"has a histogram of {sum(histogram)} verifications and {sum(by_place)} accepted "
            f"tokens, and counts of {calls} and {accepted}"
        )
    return by_place
