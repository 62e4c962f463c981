"""Counts of drafts, passes and seconds in the files of engines, whole and damaged.

The files in engine_counts are written after the engines' sources, or by the engines: vllm_draft and
vllm_ngram by vLLM 0.32 on the CPU (drafts of 5, --per-request-spec-decode-metrics detailed),
llama.txt by llama.cpp, build 7e4c0a9 (ngram-simple).
"""

import gzip
import json
import math
import os
import re
import shutil
from pathlib import Path

import pytest

from pipeline import engine
from pipeline.core.errors import PipelineError
from pipeline.engines.answers.draft_counts import read_answer_counts
from pipeline.engines.metrics_pages import page_of, read_page
from pipeline.engines.speed.comparison import gain
from pipeline.engines.speed.runs import read_run
from tests.engines import SAMPLES

FILES = Path(__file__).parent / "engine_counts"


def read(path):
    """Read a page, or the sums of answers."""
    return page_of(path) or read_answer_counts(path)


def rows(path, *values):
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


@pytest.mark.parametrize(
    ("name", "engine", "numbers", "passes", "by_place"),
    [
        ("vllm.txt", "vLLM", (1000, 3000, 1500), (math.nan,) * 3, (800, 500, 200)),
        ("llama.txt", "llama.cpp", (75, 284, 168), (1272, 1272, 1440), (54, 46, 38, 30)),
        ("vllm_ngram.txt", "vLLM", (100, 498, 274), (375, 375, 630), (77, 58, 52, 48, 39)),
        ("vllm_draft.txt", "vLLM", (255, 1275, 384), (255, 255, 630), (153, 92, 59, 47, 33)),
        ("vllm.jsonl", "vLLM", (45, 135, 14), (45, 48, 57), (6, 5, 3)),
        ("llama.jsonl", "llama.cpp", (math.nan, 9, 6), (7, 7, 13), ()),
        ("vllm_ngram.jsonl", "vLLM", (100, 498, 274), (356, 395, 630), (77, 58, 52, 48, 39)),
        ("vllm_draft.jsonl", "vLLM", (255, 1275, 384), (255, 275, 630), (153, 92, 59, 47, 33)),
    ],
)
def test_every_format_is_read(name, engine, numbers, passes, by_place):
    counts = read(FILES / name)
    found = [counts.drafts, counts.drafted, counts.accepted]
    found += [counts.least_passes, counts.most_passes, counts.emitted]
    assert found == pytest.approx([*numbers, *passes], nan_ok=True)
    assert (counts.engine, list(counts.by_place)) == (engine, list(by_place))
    assert counts.excluded == {}


def test_an_answer_without_a_draft_counts_its_passes(tmp_path):
    """Left out, it would make look-up look better: 12 tokens in 5 passes, and 3 in 2."""
    assert read(FILES / "llama.jsonl").tokens_per_pass == (13 / 7, 13 / 7)
    first, second = map(json.loads, (FILES / "llama.jsonl").read_text().splitlines())
    assert read(rows(tmp_path / "first", first)).tokens_per_pass == (11 / 5, 11 / 5)
    second |= {"tokens_predicted": None, "timings": {}}
    assert math.isnan(read(rows(tmp_path / "untold", first, second)).least_passes)


@pytest.mark.parametrize("sizes", [[(6, 5)], [(3, 5), (6, 5)]])
def test_a_drafted_answer_of_llama_took_a_pass(sizes, tmp_path):
    """Tokens of an answer, and accepted ones: all that follow the first came from one draft."""
    answers = [{"content": "x", "stop": True,
                "timings": {"predicted_n": size, "draft_n": 5, "draft_n_accepted": accepted}}
               for size, accepted in sizes]  # fmt: skip
    counts = read(rows(tmp_path / "answers", *answers))
    assert counts.least_passes == counts.most_passes == len(sizes)
    # a stop token: accepted tokens may lie behind the end of the answer
    counts = read(rows(tmp_path / "answers", *(row | {"stop_type": "eos"} for row in answers)))
    assert (counts.least_passes, counts.most_passes) == (
        len(sizes),
        sum(size - 1 for size, _ in sizes),
    )


def test_a_stream_is_one_answer(tmp_path):
    """llama.cpp sends timings with every chunk; the last ones count."""
    path, choice = tmp_path / "stream", {"finish_reason": None, "index": 0, "delta": {}}
    chunk = {"id": "s", "object": "chat.completion.chunk", "choices": [choice]}
    timings = ({"predicted_n": n, "draft_n": 2 * n, "draft_n_accepted": n // 2} for n in (1, 2, 20))
    lines = [f"data: {json.dumps(chunk | {'timings': of})}" for of in timings]
    path.write_text("\n\n".join([*lines, "data: [DONE]"]))
    counts = read(path)
    assert (counts.emitted, counts.least_passes, counts.most_passes, counts.excluded) == (
        19,
        9,
        9,
        {},
    )


def test_servers_that_count_their_rounds(tmp_path):
    """41 tokens in 8 rounds, the last of which accepted some behind the end; SGLang's 43 calls."""
    timings = {"predicted_n": 41, "draft_rounds": 8, "draft_n": 56, "draft_n_accepted": 38}
    choice = {"index": 0, "message": {}, "finish_reason": "length"}
    answers = [{"id": f"c{at}", "choices": [choice], "timings": timings} for at in range(10)]
    counts = read(rows(tmp_path / "rounds", *answers))
    assert (counts.least_passes, counts.tokens_per_pass) == (80, (5.0, 5.0))
    choice["finish_reason"] = "stop"  # accepted tokens behind the end change no count of rounds
    counts = read(rows(tmp_path / "rounds", *answers))
    assert (counts.engine, counts.least_passes, counts.most_passes) == ("MLX", 80, 80)
    row = {"text": "x", "meta_info": {"completion_tokens": 106, "spec_verify_ct": 43}}
    counts = read(rows(tmp_path / "sglang", row))
    assert (counts.engine, counts.emitted, counts.least_passes) == ("SGLang", 105, 43)


@pytest.mark.parametrize(("size", "accepted"), [(106, 62), (44, 0), (43, 0), (None, math.nan)])
def test_calls_of_sglang_alone_give_accepted_tokens_only_with_a_size(size, accepted, tmp_path):
    """43 calls emit what they accepted and 43 more, after the first token."""
    counts = {"spec_verify_ct": 43} | ({} if size is None else {"completion_tokens": size})
    read_counts = read(rows(tmp_path / "early", {"text": "x", "meta_info": counts}))
    assert (read_counts.drafts, read_counts.least_passes) == (43, 43)
    assert read_counts.accepted == pytest.approx(accepted, nan_ok=True)
    assert math.isnan(read_counts.emitted) == (size is None)


@pytest.mark.parametrize(
    ("seconds", "known"),
    [(2, 2.0), (0.5, 0.5), (0, math.nan), (True, math.nan), ("2", math.nan), (10**8, math.nan)],
)
def test_seconds_of_an_answer_are_a_number_whole_or_not(seconds, known, tmp_path):
    answer = {"custom_id": "a", "response": UNCOUNTED, "seconds": seconds}
    (read_answer,) = read(rows(tmp_path / "answers", answer)).answers.values()
    assert read_answer.seconds == pytest.approx(known, nan_ok=True)


def test_names_of_a_branch_of_llama_cpp():
    """And passes of two requests at once."""
    names = ("draft_tokens 900", "draft_tokens_accepted 350", "draft_verify_steps 290",
             "n_decode_total 300", "n_busy_slots_per_decode 2")  # fmt: skip
    page = read_page("page", "".join(f"llamacpp:{name}\n" for name in names))
    assert (page.drafts, page.drafted, page.accepted, page.least_passes) == (290, 900, 350, 600)


UNCOUNTED = {"id": "c", "choices": [{"index": 0, "message": {"content": "x"}}],
             "usage": {"completion_tokens": 64}}  # fmt: skip
LLAMA = {"content": "x", "stop": True, "timings": {"predicted_n": 64, "predicted_ms": 9.0}}


@pytest.mark.parametrize(
    ("answer", "remedy"),
    [
        (UNCOUNTED, "--per-request-spec-decode-metrics detailed, send SGLang"),
        (
            UNCOUNTED | {"system_fingerprint": "vllm-0.32.0"},
            "-: start vLLM with --per-request-spec",
        ),
        (UNCOUNTED | {"metrics": {"speculative_decoding": None}}, "--per-request-spec"),
        (UNCOUNTED | {"sglext": {}}, '-: send SGLang "return_spec_tokens_details": true'),
        (UNCOUNTED | {"sglext": {"spec_tokens_details": {"spec_verify_ct": 0}}}, "-: send SGLang"),
        (LLAMA, "-: take a newer llama.cpp"),
    ],
)
def test_counts_that_are_not_told_are_unknown(answer, remedy, tmp_path, capsys):
    """Tokens alone do not say that nothing was drafted; what would say it is named."""
    path = rows(tmp_path / "answers", answer)
    counts = read(path)
    assert (counts.emitted, counts.drafting) == (63, None)
    for number in (counts.drafts, counts.drafted, counts.accepted, counts.least_passes):
        assert math.isnan(number)
    engine.main([str(path)])
    header, row, line, _ = capsys.readouterr().out.splitlines()
    assert row.split() == ["answers", "-", "-", "-", "63", "-", "-"]
    assert remedy in line
    assert "1.000" not in header + row + line


def test_llama_cpp_since_it_counts_the_cache_leaves_out_drafts_that_are_0(tmp_path):
    answer = LLAMA | {"timings": LLAMA["timings"] | {"cache_n": 0}}
    counts = read(rows(tmp_path / "answers", answer))
    assert (counts.drafting, counts.least_passes, counts.tokens_per_pass) == (False, 63, (1, 1))


SPELLINGS = [
    ("spec_num_proposed_drafts", "spec_num_correct_drafts", "spec_correct_drafts_histogram"),
    ("spec_proposed_drafts", "spec_accepted_drafts", "spec_accept_histogram"),
    ("spec_draft_token_num", "spec_accept_token_num", "spec_accept_histogram"),
]


def sglang(place, names, histogram=(11, 14, 11, 4, 0, 3)):
    """An answer of 106 tokens in 43 calls (sglang, pull request 33518), in one of its layouts."""
    counts = {"spec_verify_ct": 43, "spec_accept_length": 106 / 43}
    counts |= dict(zip(names, (215, 63, list(histogram)), strict=True))
    choice = {"index": 0, "message": {"content": "a"}, "finish_reason": "length"}
    body = {"id": "s", "choices": [choice], "usage": {"completion_tokens": 106}}
    if place == "generate":
        return {"text": "a", "meta_info": counts | {"completion_tokens": 106}}
    if place == "choice":
        return body | {"choices": [choice | {"meta_info": counts}]}
    return body | {"sglext": {"spec_tokens_details": counts}}


@pytest.mark.parametrize("place", ["sglext", "generate", "choice"])
@pytest.mark.parametrize("names", SPELLINGS)
def test_every_layout_of_sglang_is_read(place, names, tmp_path):
    run = read_run(rows(tmp_path / "answers", sglang(place, names)))
    counts = run.counts
    assert (counts.engine, run.length) == ("SGLang", 5)
    assert (counts.drafts, counts.drafted, counts.accepted) == (43, 215, 63)
    assert (counts.least_passes, counts.most_passes, counts.emitted) == (43, 43, 105)
    assert counts.tokens_per_pass == pytest.approx((2.4419, 2.4419), abs=1e-4)
    assert list(counts.by_place) == [32, 18, 7, 3, 3]


def test_sglangs_counts_are_found_beside_a_choices_other_information(tmp_path):
    answer = sglang("sglext", SPELLINGS[0])
    answer["choices"][0]["meta_info"] = {"id": "s"}
    assert read(rows(tmp_path / "answers", answer)).least_passes == 43


def test_what_sglang_drafts_as_a_tree_has_no_length(tmp_path):
    """63 tokens a draft, of which at most five in a row are accepted."""
    answer = sglang("sglext", SPELLINGS[0])
    answer["sglext"]["spec_tokens_details"]["spec_num_proposed_drafts"] = 43 * 63
    assert read_run(rows(tmp_path / "answers", answer)).length is None


def test_sglangs_answers_that_were_not_asked_for_counts_stay_unknown(tmp_path):
    """One of a single token needs none: no pass follows prefill."""
    counted = sglang("sglext", SPELLINGS[0])
    short = UNCOUNTED | {"id": "short", "usage": {"completion_tokens": 1}}
    assert read(rows(tmp_path / "answers", counted, short)).least_passes == 43
    assert math.isnan(read(rows(tmp_path / "answers", counted, UNCOUNTED)).least_passes)


def test_sglangs_histogram_must_agree_with_its_counts(tmp_path):
    answer = sglang("sglext", SPELLINGS[0], (11, 14, 11, 4, 0, 2))
    with pytest.raises(PipelineError, match=r"line 1 has an acceptance_histogram of 42 calls"):
        read(rows(tmp_path / "answers", answer))


def test_spec_benchs_answers(tmp_path):
    """The tokens that each pass emitted, of two turns."""
    choice = {"index": 0, "turns": ["a", "b"], "decoding_steps": [3, 2], "new_tokens": [9, 3],
              "wall_time": [1.0, 1.0], "accept_lengths": [3, 1, 4, 1, 1]}  # fmt: skip
    row = {"question_id": 81, "model_id": "m", "choices": [choice]}
    counts = read(rows(tmp_path / "answers", row))
    assert (counts.engine, counts.least_passes, counts.emitted, counts.accepted) == (
        "Spec-Bench",
        5,
        10,
        5,
    )
    assert math.isnan(counts.drafted)
    choice["accept_lengths"][0] = 0
    with pytest.raises(PipelineError, match=r"has accept_lengths\.0=0"):
        read(rows(tmp_path / "answers", row))


def test_vllms_generate_has_its_prompt_in_token_ids(tmp_path):
    said = {"acceptance_histogram": [4, 2, 2, 6], "num_spec_steps": 14,
            "num_accepted_draft_tokens": 24, "num_draft_tokens": 42}  # fmt: skip
    body = {"request_id": "g", "choices": [{"index": 0, "token_ids": [5] * 39}]}
    line = {"request": {"token_ids": [1, 2], "sampling_params": {"temperature": 0.0}},
            "response": body | {"metrics": {"speculative_decoding": said}}}  # fmt: skip
    counts = read(rows(tmp_path / "answers", line))
    assert (counts.least_passes, counts.most_passes, counts.emitted) == (14, 17, 38)
    assert counts.answers["g"].prompt == [1, 2]


@pytest.mark.parametrize(("echo", "size"), [(False, 12), (True, None)])
def test_tokens_with_log_probabilities_are_counted_where_nothing_else_is(echo, size, tmp_path):
    logged = {"tokens": ["a"] * 12, "token_logprobs": [-1.0] * 12}
    line = {"request": {"echo": echo}, "response": {"choices": [{"text": "x", "logprobs": logged}]}}
    (answer,) = read(rows(tmp_path / "answers", line)).answers.values()
    assert answer.size == size


def test_what_is_left_out_is_counted(tmp_path):
    """vLLM counts no drafts where a request asks for several choices: they are no answers without.

    The file is packed, and begins with UTF-8's mark.
    """
    lines = (FILES / "vllm.jsonl").read_text().splitlines()
    single = json.loads(lines[0])
    choices = [single["choices"][0], single["choices"][0] | {"index": 1}]
    several = single | {"id": "n", "choices": choices, "metrics": None}
    others = ['{"detail": "Not Found"}', "curl: (52) Empty reply from server", "[]", "3"]
    path = tmp_path / "answers.jsonl.gz"
    text = "\n".join([*lines, *others, lines[0], json.dumps(several)])
    path.write_bytes(gzip.compress(text.encode("utf-8-sig")))
    counts = read(path)
    assert (counts.drafts, counts.least_passes) == (45, 45)
    assert counts.excluded == {
        "answers with an error": 1, "lines that are no JSON": 1, "objects that are no answers": 2,
        "answers given again": 1, "answers of several choices": 1,
    }  # fmt: skip


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/full"), Path.mkdir])
def test_what_has_no_end_is_refused_and_a_pipe_of_the_shell_is_read(make, tmp_path):
    make(tmp_path / "run")
    with pytest.raises(PipelineError, match=r"run can't be read: (it is no file|Is a directory)"):
        read_run(tmp_path / "run")
    end, begin = os.pipe()
    os.write(begin, (SAMPLES / "vllm_alone.after.txt").read_bytes())
    os.close(begin)
    assert page_of(Path(f"/dev/fd/{end}")) is not None
    os.close(end)


def test_a_torn_packed_file_is_one_line(tmp_path):
    path = tmp_path / "answers.jsonl.gz"
    path.write_bytes(gzip.compress((FILES / "vllm.jsonl").read_bytes())[:-20])
    with pytest.raises(PipelineError, match=r"gz can't be read: it is a damaged gzip file"):
        read(path)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("vllm.txt", 'engine="1",model_name="Qwen/Qwen3-1.7B"', 'engine="1",model_name="B"',
         r"holds models of B and Qwen/Qwen3-1\.7B"),
        ("vllm.txt", 'engine="1",model', 'engine="0",model', r"line 7: .*drafts_total occurs t"),
        ("vllm.txt", 'position="1"', 'position="3"', "3 positions of drafts, 0, 2, 3"),
        ("vllm.txt", "} 1800.0", "} -1", r"line 13: .* is -1: a"),
        ("vllm.txt", "} 1800.0", "} 1.0", "1500 tokens were accepted of 1201 drafted"),
        ("vllm.txt", "} 1800.0", "}", r"line 13 is no metric \('vllm:"),
        ("vllm.txt", "spec_decode", "other", r"has no counts of drafts or passes"),
        ("vllm.jsonl", '"num_spec_steps": 43', '"num_spec_steps": 42',
         r"line 1 has an acceptance_histogram of 43 calls, 10 accepted .* counts of 42 calls"),
        ("vllm.jsonl", '{"id"', 'INFO: {"id"', r"no answers .*: 2 lines that are no JSON"),
        ("vllm.jsonl", '"per_step_drafted": [3, 3]', '"per_step_drafted": [3, 2]',
         "line 2 has per_step_accepted"),
        ("vllm.jsonl", '"num_draft_tokens": 129', f'"num_draft_tokens": {10**6}',
         "line 1 has 1000000 drafted tokens in 43 calls"),
        ("llama.jsonl", '"draft_n_accepted": 6', '"draft_n_accepted": 10',
         r"10 tokens were accepted of 9 drafted"),
        ("llama.jsonl", '"draft_n_accepted"', '"accepted"', "line 1 has draft_n without"),
    ],
)  # fmt: skip
def test_damage_is_one_line(name, old, new, message, tmp_path):
    text, path = (FILES / name).read_text(), tmp_path / name
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(PipelineError, match=message) as error:
        read(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def asked(folder, name, answers=30):
    """Copy the pages of a sample, with a record, as `pipeline.ask` leaves them."""
    for page in ("before", "after"):
        shutil.copy(SAMPLES / f"{name}.{page}.txt", folder)
    (folder / f"{name}.json").write_text(json.dumps({"answers_of_pages": answers}))
    text = gzip.decompress((SAMPLES / f"{name}.jsonl.gz").read_bytes())
    (folder / f"{name}.jsonl").write_bytes(text)
    return folder / f"{name}.jsonl"


def page(folder, name):
    found = read_run(asked(folder, name)).page
    assert found is not None
    return found


def test_the_pages_before_and_after_give_the_cost_of_a_step(tmp_path):
    """The sums of the pages by hand: 30 answers of 48 tokens, the first of each from the prompt."""
    alone, drafted = (page(tmp_path, name) for name in ("vllm_alone", "vllm_draft"))
    assert (alone.least_passes, alone.emitted) == (1410, 1410)

    def spent(name, metric):
        pages = ((SAMPLES / f"{name}.{page}.txt").read_text() for page in ("before", "after"))
        found = [float(re.findall(rf"^vllm:{metric}\{{.*\}} (\S+)$", p, re.M)[0]) for p in pages]
        return found[1] - found[0]

    base, with_drafts = (
        spent(name, "inter_token_latency_seconds_sum") for name in ("vllm_alone", "vllm_draft")
    )
    passes = spent("vllm_draft", "inter_token_latency_seconds_count")
    assert drafted.least_passes == passes
    assert drafted.drafted == 4 * drafted.drafts
    speed = gain(alone, drafted)
    assert speed.times == pytest.approx(base / with_drafts)
    assert speed.cost == pytest.approx((with_drafts / passes) / (base / 1410))


def test_llama_cpp_counts_the_prompts_passes_too(tmp_path):
    """Of 1,440 tokens 1,410 come from passes after the prompts', and 168 were accepted drafts."""
    alone, drafted = (page(tmp_path, name) for name in ("llama_alone", "llama_ngram"))
    assert (alone.least_passes, alone.emitted) == (1410, 1410)
    assert (drafted.least_passes, drafted.emitted) == (1410 - 168, 1410)
    assert (drafted.drafted, drafted.drafts) == (284, 75)
    # passes without a draft cost what the target alone does
    mixed = (75 * gain(alone, drafted).cost + (1242 - 75)) / 1242
    step_cost = drafted.seconds / drafted.least_passes / (alone.seconds / alone.least_passes)
    assert mixed == pytest.approx(step_cost)


def test_pages_from_which_nothing_follows_say_why(tmp_path):
    """A server that was started again; no seconds of passes; no second token."""
    path = asked(tmp_path, "vllm_alone")
    before, after = (tmp_path / f"vllm_alone.{name}.txt" for name in ("before", "after"))
    first, last = before.read_text(), after.read_text()
    for text, message in {
        re.sub(r"(generation_tokens_total\{.*\}) .*", r"\1 1e9", last): "counts less than",
        re.sub(r"^vllm:inter_token_.*\n", "", first, flags=re.M): "do not both count passes, tok",
        last: "no answer got a second token",
    }.items():
        before.write_text(text)
        with pytest.raises(PipelineError, match=message):
            read_run(path)


def test_pages_beside_answers_are_those_of_their_record(tmp_path):
    assert read_run(asked(tmp_path, "vllm_alone", answers=7)).page is None  # of the last of several
    path = asked(tmp_path, "llama_alone")
    path.with_suffix(".json").write_text("[1]")
    with pytest.raises(PipelineError, match=r"llama_alone\.json has no answers_of_pages"):
        read_run(path)


def test_the_engines_own_figures_are_printed_beside_ours(capsys):
    """vLLM's log counts drafting calls alone: 363 of 887 tokens in 224 calls, of 1,085 passes."""
    engine.main([str(SAMPLES / "vllm_ngram.after.txt")])
    screen = capsys.readouterr().out
    assert (
        "vllm_ngram.after.txt as vLLM prints it: Mean acceptance length 2.621, Per-position "
        "acceptance rate 0.580 0.446 0.330 0.263, Avg Draft acceptance rate 0.409\n"
    ) in screen
    assert " 1.300\n" in screen  # tokens per pass


def test_a_figure_that_lacks_a_count_is_not_printed(capsys):
    """llama.cpp's answers do not count drafts, only their tokens; without drafts there is none."""
    engine.main([str(SAMPLES / "llama_ngram.jsonl.gz")])
    assert "as llama.cpp prints it: draft acceptance 0.592\n" in capsys.readouterr().out
    engine.main([str(SAMPLES / "llama_alone.jsonl.gz")])
    assert "prints it" not in capsys.readouterr().out
