"""What an answer of an engine says of the drafts that it took.

SGLang says it in `meta_info` (its own endpoint, or of a choice) or `sglext.spec_tokens_details`:
spec_verify_ct, accepted and proposed tokens, and how many verifications accepted 0, 1, ... tokens.
Names changed between versions; all are read. llama.cpp says draft_n and draft_n_accepted in
`timings`. vLLM's answers say nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.formats.engine_answers import FormatError
from pipeline.formats.engine_speech import Said

ACCEPTED = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")
PROPOSED = ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")
HISTOGRAM = ("spec_correct_drafts_histogram", "spec_accept_histogram")


@dataclass(frozen=True)
class Request:
    """What one answer says, and the model it names."""

    engine: str
    model: str | None
    said: Said


def request_of(value: Any) -> tuple[str | None, Request | None]:
    """Return the id of an answer, and what it says of drafts; None where it says nothing.

    Raises:
        FormatError: it is no object, or a number is none.
    """
    if not isinstance(value, Mapping):
        raise FormatError("is no answer of an engine: give objects")
    body = value["response"] if isinstance(value.get("response"), Mapping) else value
    body = body["body"] if isinstance(body.get("body"), Mapping) else body
    model = body.get("model")
    info = _info(body)
    name = value.get("custom_id") or body.get("id") or (info or {}).get("id")
    if info is not None and info.get("spec_verify_ct"):
        return name, Request("SGLang", model, _sglang(info))
    timings = body.get("timings")
    if isinstance(timings, Mapping) and timings.get("draft_n"):
        drafted, accepted = (_count(timings, (key,)) for key in ("draft_n", "draft_n_accepted"))
        return name, Request("llama.cpp", model, Said(math.nan, drafted, accepted, None))
    return name, None


def _info(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    choices = body.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else {}
    extension = body.get("sglext")
    held = extension.get("spec_tokens_details") if isinstance(extension, Mapping) else None
    places = (body.get("meta_info"), first.get("meta_info") if isinstance(first, Mapping) else None)
    return next((info for info in (*places, held) if isinstance(info, Mapping)), None)


def _sglang(info: Mapping[str, Any]) -> Said:
    calls = _count(info, ("spec_verify_ct",))
    accepted = _count(info, ACCEPTED)
    drafted = _count(info, PROPOSED)
    histogram = next((info[name] for name in HISTOGRAM if info.get(name)), None)
    if histogram is None:
        return Said(calls, drafted, accepted, None)
    if not isinstance(histogram, Sequence) or not all(type(n) is int and n >= 0 for n in histogram):
        raise FormatError(f"has the histogram {histogram!r}: a list of counts was expected")
    by_place = [float(sum(histogram[place:])) for place in range(1, len(histogram))]
    if sum(histogram) != calls or sum(by_place) != accepted:
        raise FormatError(
            f"has a histogram of {sum(histogram)} verifications and {sum(by_place):g} accepted "
            f"tokens, and counts of {calls:g} and {accepted:g}"
        )
    return Said(calls, drafted, accepted, by_place)


def _count(info: Mapping[str, Any], names: Sequence[str]) -> float:
    """Return the first count that is there under one of its names.

    Raises:
        FormatError: none is, or it is no whole number of at least 0.
    """
    name = next((name for name in names if info.get(name) is not None), None)
    if name is None:
        raise FormatError(f"lacks {names[0]}")
    if type(info[name]) is not int or info[name] < 0:
        raise FormatError(f"has {name}={info[name]!r}: a whole number of at least 0 was expected")
    return float(info[name])
