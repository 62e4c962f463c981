"""Prompt look-up: against a scan, and against what vLLM drafted, call by call."""

import numpy as np

from analysis.decoding.lookup import SHORTEST, continuation, lookup_calls
from tests.engines.samples import answer_ids, lines

LENGTH, LONGEST = 4, 3  # of the servers that wrote the samples


def scanned(text: list[int], longest: int, count: int, match: str) -> list[int]:
    """Look for an occurrence one by one, longer ones first."""
    for n in range(min(longest, len(text) - 1), min(longest, SHORTEST) - 1, -1):
        ends = range(n - 1, len(text) - 1)
        for end in ends if match == "earliest" else reversed(ends):
            if text[end - n + 1 : end + 1] == text[-n:]:
                grown = list(text)
                for at in range(end + 1, end + 1 + count):
                    grown.append(grown[at])
                drafted = grown[len(text) :]
                return drafted if match == "latest" else drafted[: len(text) - end - 1]
    return []


def test_it_drafts_what_a_scan_finds():
    generator = np.random.default_rng(0)
    texts = [generator.integers(3, size=size % 12).tolist() for size in range(300)]
    for match in ("latest", "earliest"):
        for text in texts:
            for longest in (1, 2, 3, 4):
                drafted = continuation(text, longest, 5, match)
                assert drafted == scanned(text, longest, 5, match), (text, match)
    text = [1, 2, 3, 9, 2, 3, 8, 1, 2, 3]
    assert continuation(text, 3, 2) == [9, 2]  # 1 2 3 occurs once before
    assert continuation(text, 2, 2) == [8, 1]  # 2 3 occurs twice, the later counts
    assert continuation(text, 2, 2, match="earliest") == [9, 2]
    assert continuation([5, 1, 2, 1, 2], 2, 5) == [1, 2, 1, 2, 1]
    assert continuation([5, 1, 2, 1, 2], 2, 5, match="earliest") == [1, 2]
    assert continuation(text, 9, 1) == [9]  # no more than the text has
    assert continuation([1, 2, 1], 3, 1) == []  # one token is too few where more are searched


def test_earliest_is_vllms_call_by_call():
    """vLLM 0.32, ngram, drafts of 4: all but each answer's last call, which may go beyond it."""
    calls = 0
    for line in lines("vllm_ngram"):
        counted = line["response"]["metrics"]["speculative_decoding"]
        theirs = list(zip(counted["per_step_drafted"], counted["per_step_accepted"], strict=True))
        replayed = lookup_calls(
            line["request"]["prompt"], answer_ids(line), LENGTH, LONGEST, "earliest"
        )
        ours = [(drafted, kept) for drafted, kept, _ in replayed if drafted]
        assert len(ours) == len(theirs)
        assert ours[:-1] == theirs[:-1]
        calls += len(ours)
    assert calls == 224
