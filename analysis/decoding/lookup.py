"""Prompt look-up: the draft repeats the continuation of an earlier passage of the text.

The passage is an occurrence of the longest n-gram that ends the text and occurs before. `latest`
takes the latest occurrence; its draft starts over when it reaches the end of the text. `earliest`
takes the earliest one; its draft stops at the end of the text, as in vLLM
(`vllm/v1/spec_decode/ngram_proposer.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

SHORTEST = 2  # tokens of a match, if longer ones are searched: docs/decoding.md
MATCHES_DIFFER = "matches differ"  # said of engines that take other occurrences than `latest`


def continuation(
    tokens: Sequence[int], longest: int, count: int, match: str = "latest"
) -> list[int]:
    """Draft up to `count` tokens that followed an earlier occurrence of the last n tokens.

    The largest n is `longest`, the least `SHORTEST` or `longest`; without a match it is empty.

    >>> text = [1, 2, 3, 4, 1, 2, 5, 1, 2]
    >>> [continuation(text, 2, 4, match) for match in ("latest", "earliest")]
    [[5, 1, 2, 5], [3, 4, 1, 2]]
    """
    text = np.array(tokens)
    size = len(text)
    ends = np.arange(size - 1)  # where an occurrence of the last n tokens ends
    matched = 0
    for n in range(1, min(longest, size - 1) + 1):
        longer = ends[(ends >= n - 1) & (text[ends - n + 1] == text[-n])]
        if not len(longer):
            break
        ends = longer
        matched = n
    if matched < min(longest, SHORTEST):
        return []
    begin = int(ends[0 if match == "earliest" else -1]) + 1
    if match == "latest":
        return [int(text[begin + offset % (size - begin)]) for offset in range(count)]
    draft: list[int] = text[begin : begin + count].tolist()
    return draft


def lookup_calls(
    prompt: Sequence[int],
    answer: Sequence[int],
    draft_length: int,
    longest: int,
    match: str = "latest",
    limit: int | None = None,
) -> list[tuple[int, int, int]]:
    """Return (drafted, accepted, emitted) of look-up's passes along a greedy answer, after prefill.

    Prefill emits the answer's first token. Every later pass verifies a draft, or emits one token if
    look-up has no match. Drafts are cut to `limit`, the largest length of an answer, as llama.cpp
    does; with None the last call may draft beyond the answer's end, as vLLM does. `longest` and
    `match` are those of `continuation`.

    >>> lookup_calls([1, 2, 3, 1], [2, 3, 1, 7], draft_length=2, longest=2)
    [(2, 2, 3)]
    """

    def draft(text: Sequence[int], count: int) -> list[int]:
        return continuation(text, longest, count, match)

    return text_calls(draft, prompt, answer, draft_length, limit)


def text_calls(
    draft: Callable[[Sequence[int], int], Sequence[int]],
    prompt: Sequence[int],
    answer: Sequence[int],
    draft_length: int,
    limit: int | None = None,
) -> list[tuple[int, int, int]]:
    """Return the passes as `lookup_calls` does, for any drafter that reads the text only.

    `draft` takes a text and a number of tokens, and returns at most as many.
    """
    done = 1
    calls = []
    while done < len(answer):
        count = draft_length if limit is None else min(draft_length, limit - done - 1)
        drafted = draft([*prompt, *answer[:done]], count)
        rest = answer[done:]
        equal = [ours == theirs for ours, theirs in zip(drafted, rest, strict=False)]
        accepted = [*equal, False].index(False)
        emitted = min(accepted + 1, len(rest))
        calls.append((len(drafted), accepted, emitted))
        done += emitted
    return calls
