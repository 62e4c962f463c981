"""Counts of drafts in the files of engines, whole and damaged.

The files beside this test are written after the sources that `pipeline.engines` names.
"""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest

from pipeline.engines.counts import read_counts, read_sums
from pipeline.engines.pages import read_page
from pipeline.errors import PipelineError

FILES = Path(__file__).parent / "engine_counts"


def damaged(path: Path, name: str, *changes: tuple[str, str]) -> Path:
    """Write a file of an engine with parts replaced."""
    text = (FILES / name).read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("name", "engine", "numbers", "passes", "by_place"),
    [
        ("vllm.txt", "vLLM", (1000, 3000, 1500), (math.nan,) * 2, (800, 500, 200)),
        # written by llama.cpp, build 7e4c0a9: ngram-simple
        ("llama.txt", "llama.cpp", (75, 284, 168), (1272, 1440), (54, 46, 38, 30)),
        # written by vLLM 0.32: look-up, and a draft model
        ("vllm_ngram.txt", "vLLM", (100, 498, 274), (375, 630), (77, 58, 52, 48, 39)),
        ("vllm_draft.txt", "vLLM", (255, 1275, 384), (255, 630), (153, 92, 59, 47, 33)),
    ],
)
def test_every_page_is_read(
    name: str,
    engine: str,
    numbers: tuple[float, ...],
    passes: tuple[float, ...],
    by_place: tuple[float, ...],
) -> None:
    page = read_page(name, (FILES / name).read_text())
    assert page.engine == engine
    assert [page.drafts, page.drafted, page.accepted] == list(numbers)
    assert [page.passes, page.emitted] == pytest.approx(list(passes), nan_ok=True)
    assert page.by_place == list(by_place)


@pytest.mark.parametrize(
    ("name", "engine", "numbers", "passes", "by_place"),
    [
        ("vllm.jsonl", "vLLM", (45, 135, 14), (45, 48, 57), (6, 5, 3)),
        ("llama.jsonl", "llama.cpp", (math.nan, 9, 6), (7, 7, 13), ()),
        ("vllm_ngram.jsonl", "vLLM", (100, 498, 274), (356, 395, 630), (77, 58, 52, 48, 39)),
        ("vllm_draft.jsonl", "vLLM", (255, 1275, 384), (255, 275, 630), (153, 92, 59, 47, 33)),
    ],
)
def test_every_format_is_read(
    name: str,
    engine: str,
    numbers: tuple[float, ...],
    passes: tuple[float, ...],
    by_place: tuple[float, ...],
) -> None:
    counts = read_counts(FILES / name)
    assert counts.engine == engine
    read = [counts.drafts, counts.drafted, counts.accepted]
    assert read == pytest.approx(list(numbers), nan_ok=True)
    read = [counts.passes, counts.most_passes, counts.emitted]
    assert read == pytest.approx(list(passes), nan_ok=True)
    assert list(counts.by_place) == list(by_place)
    assert counts.excluded == {}


def test_an_answer_without_a_draft_counts_its_passes(tmp_path: Path) -> None:
    """Left out, it would make look-up look better: 12 tokens in 5 passes, and 3 in 2."""
    counts = read_counts(FILES / "llama.jsonl")
    assert counts.tokens_per_pass == (13 / 7, 13 / 7)
    lines = (FILES / "llama.jsonl").read_text().splitlines()
    (tmp_path / "first").write_text(lines[0] + "\n")
    assert read_counts(tmp_path / "first").tokens_per_pass == (11 / 5, 11 / 5)
    untold = json.loads(lines[1]) | {"tokens_predicted": None, "timings": {}}
    (tmp_path / "untold").write_text(f"{lines[0]}\n{json.dumps(untold)}\n")
    assert math.isnan(read_counts(tmp_path / "untold").passes)


def test_several_choices_are_left_out(tmp_path: Path) -> None:
    """vLLM counts no drafts where a request asks for several: they are no answers without."""
    single = json.loads((FILES / "vllm.jsonl").read_text().splitlines()[0])
    choices = [single["choices"][0], single["choices"][0] | {"index": 1}]
    several = single | {"id": "n", "choices": choices, "metrics": None}
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join(map(json.dumps, [single, several])))
    counts = read_counts(path)
    assert counts.excluded == {"answers of several choices": 1}
    assert counts.passes == 43


def test_drafts_of_every_call_as_vllm_lists_them() -> None:
    """One draft of look-up had 3 tokens; an answer of one token had no call."""
    answers = read_counts(FILES / "vllm_ngram.jsonl").answers.values()
    steps = [step for answer in answers for step in answer.per_step or ()]
    assert len(steps) == 100
    assert [step for step in steps if step[1] != 5] == [(3, 3)]
    assert [answer.passes for answer in answers if answer.tokens == 1] == [(0, 0)] * 2


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
        ("vllm.txt", [("spec_decode", "other")], r"has no counts of drafts or passes: give"),
        ("llama.txt", [("llamacpp:spec_decode_num_drafts_total 75", "vllm:spec_decode_num 75")],
         r"metrics of llamacpp and vllm: leave the lines"),
        ("vllm.jsonl", [('"num_spec_steps": 43', '"num_spec_steps": 42')],
         r"line 1 has a histogram of 43 verifications and 10 accepted .* counts of 42 and 10"),
        ("vllm.jsonl", [('{"id"', 'INFO: {"id"')],
         r"holds no answers as JSON \(left out: 2 lines that are no JSON\)"),
        ("vllm.jsonl", [("num_spec_steps", "steps")], r"no answer reports draft counts; llama"),
        ("llama.jsonl", [('"draft_n_accepted": 6', '"draft_n_accepted": 10')],
         r"10 tokens were accepted of 9 drafted"),
        ("llama.jsonl", [('"draft_n": 9', '"draft_n": "9"')], r"line 1 has draft_n='9'"),
        ("vllm.txt", [("} 1800.0", "} 1.2.3")], r"line 13: .* is 1\.2\.3: a number of at least 0"),
        ("vllm.txt", [("} 1800.0", "} 1e999")], r"line 13: .* is 1e999: a number"),
        ("vllm.txt", [("} 1800.0", "} +Inf")], r"line 13: .* is \+Inf: a number"),
        ("vllm.txt", [("} 1800.0", "} -1")], r"line 13: .* is -1: a number"),
        ("vllm.jsonl", [("[39, 1, 0, 3]", f"[{2**40 - 4}, 1, 0, 3]"),
                        ('"num_spec_steps": 43', f'"num_spec_steps": {2**40}')],
         r"line 1 has num_spec_steps=1099511627776: a whole number from 0 to 10000000"),
        ("vllm.jsonl", [("[39, 1, 0, 3]", str([39, 1, 0, 3] + [0] * 1022))],
         r"line 1 has a histogram of drafts of 1025 tokens: at most 1024"),
        ("vllm.jsonl", [('"per_step_accepted": [2, 2]', '"per_step_accepted": [2]')],
         r"line 2 has per_step_accepted that is no list of 2 calls"),
        ("vllm.jsonl", [('"per_step_accepted": [2, 2]', '"per_step_accepted": [4, 0]')],
         r"line 2 has a call in per_step_accepted that accepts more than it drafts"),
        ("vllm.jsonl", [('"per_step_drafted": [3, 3]', '"per_step_drafted": [3, 2]')],
         r"line 2 has 4 accepted and 5 drafted tokens by call, and counts of 4 and 6"),
        ("vllm.jsonl", [('"num_draft_tokens": 129', '"num_draft_tokens": Infinity')],
         r"line 1 has num_draft_tokens=inf"),
    ],
)  # fmt: skip
def test_damage_is_one_line(
    name: str, changes: list[tuple[str, str]], message: str, tmp_path: Path
) -> None:
    path = damaged(tmp_path / name, name, *changes)
    with pytest.raises(PipelineError, match=message) as error:
        read_page(path, path.read_text()) if name.endswith(".txt") else read_counts(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_no_answer_is_counted(tmp_path: Path) -> None:
    lines = (FILES / "vllm.jsonl").read_text().splitlines()
    path = tmp_path / "answers.jsonl.gz"
    others = ['{"detail": "Not Found"}', "curl: (52) Empty reply from server", "[]", "3"]
    text = "\n".join([*lines, *others, lines[0]])
    path.write_bytes(gzip.compress(text.encode()))
    counts, whole = read_counts(path), read_counts(FILES / "vllm.jsonl")
    assert counts.drafts == whole.drafts
    assert counts.excluded == {
        "answers with an error": 1, "lines that are no JSON": 1, "objects that are no answers": 2,
        "answers given again": 1,
    }  # fmt: skip


def test_places_beyond_any_draft_are_damage(tmp_path: Path) -> None:
    """A million positions would be a table of as many rows."""
    line = 'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{}"}} 0\n'
    text = (FILES / "vllm.txt").read_text() + "".join(map(line.format, range(3, 1026)))
    with pytest.raises(PipelineError, match="has 1026 positions, more than the 1024"):
        read_page("page", text)


@pytest.mark.parametrize("answers", [[(6, 5)], [(3, 5), (6, 5)]])
def test_a_drafted_answer_of_llama_took_a_pass(answers: list[Any], tmp_path: Path) -> None:
    """Tokens of an answer, and accepted ones: all that follow the first came from one draft."""
    rows = [{"content": "x", "stop": True,
             "timings": {"predicted_n": size, "draft_n": 5, "draft_n_accepted": accepted}}
            for size, accepted in answers]  # fmt: skip
    path = tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_counts(path).passes == read_counts(path).most_passes == len(answers)
    assert read_counts(path).tokens_per_pass[1] <= 5
    for row in rows:  # then accepted tokens may lie behind the end of the answer
        row["stop_type"] = "eos"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_counts(path).passes == len(answers)
    assert read_counts(path).most_passes == sum(size - 1 for size, _ in answers)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"choices": [{"index": 0}], "metrics": {"speculative_decoding": [1]}}',
         r"line 1 has metrics\.speculative_decoding=\[1\]: an object was expected"),
        ('{"content": "x", "stop": true, "timings": "abc"}',
         "line 1 has timings='abc': an object was expected"),
        ((FILES / "vllm.txt").read_text().encode("utf-16"), "is in UTF-16.*: save it in UTF-8"),
    ],
)  # fmt: skip
def test_fields_and_encodings_are_named(content: str | bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(PipelineError, match=message):
        read_counts(tmp_path / "file")


def test_a_file_with_a_mark_of_its_encoding_is_read(tmp_path: Path) -> None:
    text = (FILES / "vllm.jsonl").read_text()
    (tmp_path / "answers").write_text(text, encoding="utf-8-sig")
    assert read_counts(tmp_path / "answers").drafts == 45


def test_answers_without_a_draft_are_one_line(tmp_path: Path) -> None:
    path = damaged(tmp_path / "a", "llama.jsonl", ('"draft_n": 9', '"draft_n": 0'),
                   ('"draft_n_accepted": 6', '"draft_n_accepted": 0'))  # fmt: skip
    with pytest.raises(PipelineError, match="no token was drafted: start the engine with"):
        read_counts(path)


def chunk(tokens: int, accepted: int, **more: Any) -> str:
    timings = {"predicted_n": tokens, "draft_n": 2 * tokens, "draft_n_accepted": accepted}
    choice = {"finish_reason": None, "index": 0, "delta": {"content": "x"}} | more
    return "data: " + json.dumps(
        {"id": "s", "object": "chat.completion.chunk", "choices": [choice], "timings": timings}
    )


def test_a_stream_is_one_answer(tmp_path: Path) -> None:
    """llama.cpp sends timings with every chunk; the last ones count."""
    parts = [chunk(n, n // 2) for n in range(1, 21)]
    path = tmp_path / "stream"
    ends = [chunk(20, 10, delta={}, finish_reason="length"), "data: [DONE]"]
    path.write_text("\n\n".join([*parts, *ends]))
    counts = read_counts(path)
    assert (counts.emitted, counts.passes, counts.most_passes) == (19, 9, 9)
    assert counts.excluded == {}


def test_servers_that_count_their_rounds(tmp_path: Path) -> None:
    """41 tokens in 8 rounds, of which the last accepted some behind the answer's end."""
    timings = {"predicted_n": 41, "draft_rounds": 8, "draft_n": 56, "draft_n_accepted": 38}
    choice = {"index": 0, "message": {}, "finish_reason": "length"}
    rows = [{"id": f"c{at}", "choices": [choice], "timings": timings} for at in range(10)]
    path = tmp_path / "rounds"
    path.write_text("\n".join(map(json.dumps, rows)))
    counts = read_counts(path)
    assert (counts.passes, counts.tokens_per_pass) == (80, (5.0, 5.0))


def test_sglang_counts_its_verifications(tmp_path: Path) -> None:
    row = {"text": "x", "meta_info": {"completion_tokens": 106, "spec_verify_ct": 43}}
    path = tmp_path / "sglang"
    path.write_text(json.dumps(row))
    counts = read_counts(path)
    assert (counts.engine, counts.emitted, counts.passes) == ("SGLang", 105, 43)


def test_names_of_a_branch_of_llama_cpp() -> None:
    names = (
        "draft_tokens_total 900",
        "draft_tokens_accepted_total 350",
        "draft_verify_steps_total 290",
    )
    text = "".join(f"llamacpp:{name}\n" for name in (*names, "n_decode_total 300"))
    page = read_page("page", text)
    assert (page.drafts, page.drafted, page.accepted, page.passes) == (290, 900, 350, 300)


@pytest.mark.parametrize("size", [10**8, 2**63, 10**400])
def test_numbers_have_a_limit(size: int, tmp_path: Path) -> None:
    path = tmp_path / "many"
    path.write_text(json.dumps({"choices": [{}], "usage": {"completion_tokens": size}}))
    with pytest.raises(PipelineError, match=r"line 1 has completion_tokens=\d+: a whole n"):
        read_counts(path)


def test_names_can_be_printed_and_stored(tmp_path: Path) -> None:
    path = tmp_path / "names"
    path.write_text(json.dumps({"custom_id": "a\x1b[31m\ud800", "choices": [{"token_ids": [1]}]}))
    assert list(read_sums(path).answers) == ["a\\u001b[31m\\ud800"]
