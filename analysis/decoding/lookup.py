"""Prompt look-up: the draft is a continuation that the text has had before.

Which occurrence is taken, and how far the draft goes, differs between engines (MATCHES):

| match | occurrence | n-gram | draft |
|---|---|---|---|
| latest | the latest | the longest that occurs | goes on with itself at the end of the text |
| earliest | the earliest | the longest that occurs | ends with the text |
| fixed | the latest | of exactly `longest` tokens | ends before the last token; at least n |

earliest is vLLM's (`vllm/v1/spec_decode/ngram_proposer.py`), fixed llama.cpp's ngram-simple
(`common/ngram-map.cpp`: common_ngram_simple_draft).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MATCHES = ("latest", "earliest", "fixed")
SHORTEST = 2  # tokens of a match, where longer ones are looked for: docs/decoding.md


def continuation(
    tokens: Sequence[int], longest: int, count: int, shortest: int = 1, match: str = "latest"
) -> list[int]:
    """Draft up to `count` tokens: what followed an earlier occurrence of the last n tokens.

    Args:
        tokens: the text.
        longest: the largest n.
        count: of the draft.
        shortest: the least n; `match` fixed takes `longest` only.
        match: of `MATCHES`.

    Returns:
        The draft, empty without an occurrence.

    Examples:
        >>> text = [1, 2, 3, 4, 1, 2, 5, 1, 2]
        >>> [continuation(text, 2, 4, match=match) for match in MATCHES]
        [[5, 1, 2, 5], [3, 4, 1, 2], [5, 1]]
    """
    text = np.array(tokens)
    size = len(text)
    if match == "fixed" and size <= longest + count + 2:
        return []
    ends = np.arange(size - 1)  # where an occurrence of the last n tokens ends
    matched = 0
    for n in range(1, min(longest, size - 1) + 1):
        longer = ends[(ends >= n - 1) & (text[ends - n + 1] == text[-n])]
        if not len(longer):
            break
        ends, matched = longer, n
    if matched < max(1, longest if match == "fixed" else shortest):
        return []
    begin = int(ends[0 if match == "earliest" else -1]) + 1
    if match == "latest":
        return [int(text[begin + at % (size - begin)]) for at in range(count)]
    draft: list[int] = text[begin : min(begin + count, size - (match == "fixed"))].tolist()
    # llama.cpp's first token is index 0, which means no match there
    return [] if match == "fixed" and (len(draft) < longest or begin == longest) else draft


def lookup_calls(
    prompt: Sequence[int],
    answer: Sequence[int],
    draft_length: int,
    longest: int,
    match: str = "latest",
    limit: int | None = None,
) -> list[tuple[int, int, int]]:
    """Replay look-up along an answer of greedy decoding.

    The prompt's pass emits the answer's first token; every later pass verifies a draft, or emits
    one token where look-up finds nothing.

    Args:
        prompt: token ids.
        answer: token ids.
        draft_length: of a full draft.
        longest: n of `continuation`, whose least n is `SHORTEST`.
        match: of `MATCHES`.
        limit: the most tokens of an answer, to which drafts are cut (llama.cpp does); None: they
            are not cut, and the last call may draft beyond the answer's end (vLLM).

    Returns:
        (drafted, accepted, emitted) of every pass after the prompt's.

    Examples:
        >>> lookup_calls([1, 2, 3, 1], [2, 3, 1, 7], draft_length=2, longest=2)
        [(2, 2, 3)]
    """
    text, calls = [*prompt, *answer[:1]], []
    while (at := len(text) - len(prompt)) < len(answer):
        draft = continuation(text, longest, draft_length, min(longest, SHORTEST), match)
        draft = draft if limit is None else draft[: limit - at - 1]
        right = 0
        while right < min(len(draft), len(answer) - at) and draft[right] == answer[at + right]:
            right += 1
        emitted = min(right + 1, len(answer) - at)
        calls.append((len(draft), right, emitted))
        text += answer[at : at + emitted]
    return calls
