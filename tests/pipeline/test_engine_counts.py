"""Counts of drafts in the files of engines, whole and damaged.

The files beside this test are written after the sources that `engine_counts` names.
"""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import PipelineError
from pipeline.formats.engine_counts import EngineCounts, read_counts

FILES = Path(__file__).parent / "engine_counts"


def damaged(path: Path, name: str, *changes: tuple[str, str]) -> Path:
    """Write a file of an engine with parts replaced."""
    text = (FILES / name).read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return path


def streamed(path: Path, *events: Any) -> Path:
    path.write_text("".join(f"data: {json.dumps(event)}\n\n" for event in events))
    return path


@pytest.mark.parametrize(
    ("name", "engine", "numbers", "by_place", "length", "pieces"),
    [
        ("vllm.txt", "vLLM", (1000, 3000, 1500), (800, 500, 200), 2.5, "12 series"),
        ("vllm.jsonl", "vLLM", (45, 135, 14), (6, 5, 3), 1 + 14 / 45, "2 answers"),
        ("sglang.jsonl", "SGLang", (6, 18, 9), (5, 3, 1), 2.5, "2 answers"),
        ("llama.txt", "llama.cpp", (97, 388, 257), (78, 68, 61, 50), 1 + 257 / 97, "7 series"),
        ("llama.jsonl", "llama.cpp", (math.nan, 9, 6), (), math.nan, "1 answers"),
    ],
)
def test_every_format_is_read(
    name: str,
    engine: str,
    numbers: tuple[float, ...],
    by_place: tuple[float, ...],
    length: float,
    pieces: str,
) -> None:
    counts = read_counts(FILES / name)
    assert (counts.engine, counts.pieces) == (engine, pieces)
    found = [counts.calls, counts.drafted, counts.accepted, counts.tokens_per_call]
    assert found == pytest.approx([*numbers, length], nan_ok=True)
    assert list(counts.by_place) == list(by_place)
    silent = {"answers that report no draft counts": 1} if name == "llama.jsonl" else {}
    assert counts.excluded == silent


def test_both_definitions_of_acceptance_at_a_place() -> None:
    places = read_counts(FILES / "vllm.txt").places
    assert [place["of_all"] for place in places] == [0.8, 0.5, 0.2]  # as engines print it
    assert [place["conditional"] for place in places] == [0.8, 500 / 800, 200 / 500]
    assert [place["reached"] for place in places] == [1000, 800, 500]
    nothing = EngineCounts("vLLM", "1 series", 4, 8, 0, [0, 0]).places
    assert math.isnan(nothing[1]["conditional"])
    assert nothing[1]["of_all"] == 0


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("vllm.txt", [('engine="1",model_name="Qwen/Qwen3-1.7B"', 'engine="1",model_name="B"')],
         r"holds models of B and Qwen/Qwen3-1\.7B: leave the lines of one"),
        ("vllm.txt", [('{engine="1",model_name="Qwen/Qwen3-1.7B"} 400.0',
                       '{engine="0",model_name="Qwen/Qwen3-1.7B"} 400.0')],
         r"line 7: .*drafts_total occurs twice: give one page"),
        ("vllm.txt", [("spec_decode_num_drafts_total{", "spec_decode_drafts{")],
         r"lacks vllm:spec_decode_num_drafts_total"),
        ("vllm.txt", [('position="1"', 'position="3"')], r"positions 0, 2, 3: one is missing"),
        ("vllm.txt", [("} 1800.0", "} NaN")], r"line 13: .* is NaN: a number of at least 0"),
        ("vllm.txt", [("} 1800.0", "}")], r"line 13 is no metric \('vllm:"),
        ("vllm.txt", [("1800.0", "100.0"), ("1200.0", "100.0")], r"1500 tokens .* of 200 drafted"),
        ("vllm.txt", [("} 120.0", "} 420.0"), ("} 300.0", "} 0.0")], r"at a place of the draft"),
        # 8 instead of 80: a page that was cut off lacks its last metric
        ("vllm.txt", [("} 80.0\n", "} 8")], r"1500 tokens were accepted, 1420 by their places"),
        ("vllm.txt", [("spec_decode", "other")], r"has no counts of drafts: start"),
        ("llama.txt", [("llamacpp:spec_decode_num_drafts_total 97", "vllm:spec_decode_num 97")],
         r"metrics of llamacpp and vllm: leave the lines"),
        ("vllm.jsonl", [('"num_spec_steps": 43', '"num_spec_steps": 42')],
         r"line 1 has a histogram of 43 verifications and 10 accepted .* counts of 42 and 10"),
        ("vllm.jsonl", [('{"id"', 'INFO: {"id"')],
         r"neither a page of /metrics nor answers as JSON \(left out: 2 lines that are no JSON\)"),
        ("sglang.jsonl", [("[1, 1, 1, 1]", "[2, 1, 1, 1]")],
         r"line 1 has a histogram of 5 verifications and 6 accepted"),
        ("sglang.jsonl", [('"spec_num_correct_drafts": 6,', "")], "has spec_num_correct_drafts"),
        ("sglang.jsonl", [("spec_verify_ct", "verify")], r"no answer reports draft counts; SGLang"),
        ("llama.jsonl", [('"draft_n": 9', '"draft_n": "9"')], r"line 1 has draft_n='9'"),
    ],
)  # fmt: skip
def test_damage_is_one_line(
    name: str, changes: list[tuple[str, str]], message: str, tmp_path: Path
) -> None:
    path = damaged(tmp_path / name, name, *changes)
    with pytest.raises(PipelineError, match=message) as error:
        read_counts(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["vllm.jsonl", "sglang.jsonl"])
@pytest.mark.parametrize("start", ["", "data: "])
def test_what_is_no_answer_is_counted(name: str, start: str, tmp_path: Path) -> None:
    lines = (FILES / name).read_text().splitlines()
    path = tmp_path / "answers.jsonl.gz"
    others = ['{"detail": "Not Found"}', "curl: (52) Empty reply from server", "[]", "3"]
    text = "\n".join(start + line for line in [*lines, *others, lines[0]])
    path.write_bytes(gzip.compress(text.encode()))
    counts, whole = read_counts(path), read_counts(FILES / name)
    assert counts.calls == whole.calls
    assert counts.excluded == {
        "answers with an error": 1, "lines that are no JSON": 1, "objects that are no answers": 1,
        "answers given again": 1,
    }  # fmt: skip


def test_a_stream_counts_once_with_what_it_said_last(tmp_path: Path) -> None:
    whole = json.loads((FILES / "sglang.jsonl").read_text().splitlines()[0])
    first = {"meta_info": whole["meta_info"] | {"spec_verify_ct": 1, "spec_accept_histogram": [
        0, 1], "spec_num_correct_drafts": 1, "spec_correct_drafts_histogram": None,
        "finish_reason": None}}  # fmt: skip
    assert read_counts(streamed(tmp_path / "sglang", first, whole)).calls == 4
    whole = json.loads((FILES / "llama.jsonl").read_text().splitlines()[0])  # without an id
    first = whole | {"stop": False, "timings": whole["timings"] | {"draft_n": 3}}
    counts = read_counts(streamed(tmp_path / "llama", *[first, whole] * 2))
    assert (counts.drafted, counts.accepted, counts.pieces) == (18, 12, "2 answers")
