"""Prompt look-up: the draft repeats the continuation of an earlier passage of the text.

Engines differ in the occurrence that they take and in the end of the draft (MATCHES):

| match | occurrence | n-gram | draft |
|---|---|---|---|
| latest | the latest | the longest that occurs | repeats itself at the end of the text |
| earliest | the earliest | the longest that occurs | ends with the text |

earliest is vLLM's (`vllm/v1/spec_decode/ngram_proposer.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MATCHES = ("latest", "earliest")
SHORTEST = 2  # tokens of a match, if longer ones are searched: docs/decoding.md


def continuation(
    tokens: Sequence[int], longest: int, count: int, shortest: int = 1, match: str = "latest"
) -> list[int]:
    """Draft up to `count` tokens that followed an earlier occurrence of the last n tokens.

    Args:
        tokens: the text.
        longest: the largest n.
        count: length of a full draft.
        shortest: the least n.
        match: one of `MATCHES`.

    Returns:
        The draft, empty without an occurrence.

    Examples:
        >>> text = [1, 2, 3, 4, 1, 2, 5, 1, 2]
        >>> [continuation(text, 2, 4, match=match) for match in MATCHES]
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
        ends, matched = longer, n
    if matched < max(1, shortest):
        return []
    begin = int(ends[0 if match == "earliest" else -1]) + 1
    if match == "latest":
        return [int(text[begin + offset % (size - begin)]) for offset in range(count)]
    draft: list[int] = text[begin : begin + count].tolist()
    return draft


def lookup_draft(
    tokens: Sequence[int], longest: int, draft_length: int, match: str, most: int | None
) -> list[int]:
    """Return the `continuation` after a match of at least `SHORTEST` tokens, or of `longest`.

    It is cut to `most` tokens; None cuts nothing.
    """
    return continuation(tokens, longest, draft_length, min(longest, SHORTEST), match)[:most]


def lookup_calls(
    prompt: Sequence[int],
    answer: Sequence[int],
    draft_length: int,
    longest: int,
    match: str = "latest",
    limit: int | None = None,
) -> list[tuple[int, int, int]]:
    """Return the calls of look-up along an answer of greedy decoding.

    Prefill emits the answer's first token. Every later pass verifies a draft, or emits one token if
    look-up has no match.

    Args:
        prompt: token ids.
        answer: token ids.
        draft_length: of a full draft.
        longest: largest n of a match.
        match: one of `MATCHES`.
        limit: largest length of an answer, to which drafts are cut (as llama.cpp does). With None
            they are not cut, and the last call may draft beyond the answer's end (as vLLM does).

    Returns:
        (drafted, accepted, emitted) of every pass after prefill.

    Examples:
        >>> lookup_calls([1, 2, 3, 1], [2, 3, 1, 7], draft_length=2, longest=2)
        [(2, 2, 3)]
    """
    done, calls = 1, []
    while done < len(answer):
        most = None if limit is None else limit - done - 1
        text, rest = [*prompt, *answer[:done]], answer[done:]
        draft = lookup_draft(text, longest, draft_length, match, most)
        equal = [ours == theirs for ours, theirs in zip(draft, rest, strict=False)]
        accepted = [*equal, False].index(False)
        emitted = min(accepted + 1, len(rest))
        calls.append((len(draft), accepted, emitted))
        done += emitted
    return calls
