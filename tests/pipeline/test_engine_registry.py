"""Which engine wrote an answer: told by what the answer shows, and by nothing else."""

import gzip
import json
import math
from types import SimpleNamespace

import pytest

from pipeline import engine
from pipeline.core.errors import PipelineError
from pipeline.engine_checks import StudyChecker
from pipeline.engines.answers.draft_counts import read_answer_counts
from pipeline.engines.answers.layouts import answer_parts
from pipeline.engines.answers.logs import read_log
from pipeline.engines.counts import UNDRAFTED
from pipeline.engines.engine_base import PageSums
from pipeline.engines.registry import ENGINES, UNKNOWN, counts_remedy, engine_named, engine_of
from tests.engines import SAMPLES

CHOICE = {"index": 0, "message": {"content": "x"}, "finish_reason": "length"}
CHAT = {"id": "c", "choices": [CHOICE], "usage": {"completion_tokens": 41}}
TIMINGS = {"prompt_n": 9, "cache_n": 0, "predicted_n": 41, "predicted_ms": 200.0}
MLX_TIMINGS = TIMINGS | {"peak_memory": 3.5}  # mlx-vlm's GenerationTimings
COUNTED = {"draft_rounds": 8, "draft_n": 56, "draft_n_accepted": 38}


def rows(path, *values):
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def logged(with_ids=False):
    """A choice of one token, with two log-probabilities."""
    top = [{"token": one, "bytes": [*one.encode()]} for one in "ab"]
    for at, entry in enumerate(top):
        entry["logprob"] = (-0.25, -1.75)[at]
        if with_ids:
            entry["id"] = at
    return CHOICE | {"logprobs": {"content": [top[0] | {"top_logprobs": top}]}}


def name_of(body):
    (part,) = answer_parts(body, 1)
    return engine_of(part).name


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (CHAT | {"system_fingerprint": "vllm-0.32.0-73eff59a"}, "vLLM"),
        (CHAT | {"metrics": {"speculative_decoding": {"num_spec_steps": 0}}}, "vLLM"),
        (CHAT | {"timings": TIMINGS}, "llama.cpp"),
        (CHAT | {"timings": {"draft_n": 3, "draft_n_accepted": 1}}, "llama.cpp"),
        (CHAT | {"system_fingerprint": "b7120-7e4c0a9"}, "llama.cpp"),
        (CHAT | {"choices": [logged(with_ids=True)]}, "llama.cpp"),
        ({"content": "x", "stop": True}, "llama.cpp"),
        ({"completion_probabilities": []}, "llama.cpp"),
        (CHAT | {"timings": MLX_TIMINGS}, "MLX"),
        (CHAT | {"timings": TIMINGS | COUNTED}, "MLX"),
        (CHAT | {"sglext": {}}, "SGLang"),
        (CHAT | {"choices": [CHOICE | {"meta_info": {"id": "s"}}]}, "SGLang"),
        ({"text": "x", "meta_info": {"id": "s"}}, "SGLang"),
        ({"choices": [{"accept_lengths": [3, 1]}]}, "Spec-Bench"),
        (CHAT, ""),
        (CHAT | {"choices": [logged()]}, ""),
        (CHAT | {"timings": {}}, ""),
        (CHAT | {"timings": {"queue": 0.1, "total": 2.0}}, ""),
        (CHAT | {"timings": 7, "metrics": {"speculative_decoding": None}}, ""),
        (CHAT | {"system_fingerprint": "fp_44709d6fcb"}, ""),
        (CHAT | {"system_fingerprint": "b7120"}, ""),
    ],
)
def test_an_engine_is_told_by_what_it_writes(body, name):
    assert name_of(body) == name


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.jsonl.gz")), ids=lambda path: path.name)
def test_answers_of_real_engines_name_theirs(path):
    expected = {"vllm": "vLLM", "llama": "llama.cpp"}[path.name.partition("_")[0]]
    for line in gzip.decompress(path.read_bytes()).splitlines():
        assert name_of(json.loads(line)) == expected


@pytest.mark.parametrize(
    "body",
    [
        {"generated_text": "x", "details": {"generated_tokens": 3}},
        {"model": "m", "response": "x", "done": True, "eval_count": 3},
        {"model_name": "m", "text_output": "x", "output_log_probs": [-0.5]},
        {"content": [{"text": "x"}], "stop_reason": "end_turn"},
    ],
)
def test_an_unknown_layout_is_refused_by_its_keys(body, tmp_path):
    """It is not read as llama.cpp's because nothing else fits."""
    path = rows(tmp_path / "log", *[body] * 3)
    for read in (read_answer_counts, lambda path: read_log(path, 2)):
        with pytest.raises(PipelineError, match=rf"JSON objects with the keys {next(iter(body))}"):
            read(path)


def test_timings_of_mlx_do_not_say_that_nothing_was_drafted(tmp_path, capsys):
    """Of llama.cpp the same timings do; mlx-vlm drafted before it counted."""
    counts = read_answer_counts(rows(tmp_path / "llama", CHAT | {"timings": TIMINGS}))
    assert (counts.engine, counts.drafting, counts.least_passes) == ("llama.cpp", False, 40)
    path = rows(tmp_path / "mlx", CHAT | {"timings": MLX_TIMINGS})
    counts = read_answer_counts(path)
    assert (counts.engine, counts.drafting, counts.emitted) == ("MLX", None, 40)
    assert math.isnan(counts.least_passes)
    engine.main([str(path)])
    assert "take a newer MLX" in capsys.readouterr().out


def test_mlx_compares_with_its_own_run_without_drafts(tmp_path, capsys):
    slow = MLX_TIMINGS | {"predicted_ms": 500.0}
    alone = rows(tmp_path / "alone", *(CHAT | {"id": f"c{at}", "timings": slow} for at in range(9)))
    timings = MLX_TIMINGS | COUNTED
    drafted = (CHAT | {"id": f"c{at}", "timings": timings} for at in range(9))
    engine.main([str(alone), str(rows(tmp_path / "drafted", *drafted))])
    assert "2.50 times" in capsys.readouterr().out


def test_only_llama_cpps_log_has_the_error_of_its_sum(tmp_path):
    """Two digits are printed: 0.005 nats. A softmax over 2^20 tokens may be off by 2^-4."""
    timings = {"timings": MLX_TIMINGS}
    for body, name, error in [
        (CHAT | {"choices": [logged(with_ids=True)]}, "llama.cpp", 0.005 + 2.0**-4),
        (CHAT | {"choices": [logged()]} | timings, "MLX", 0.005 + 9e-5),
        (CHAT | {"choices": [logged()]}, "", 0.005 + 9e-5),
    ]:
        log = read_log(rows(tmp_path / "log", body), 2, vocab_size=2**20)
        assert log.engine == name
        assert log.error == pytest.approx(error)


def test_answers_of_two_engines_are_refused(tmp_path):
    vllm = CHAT | {"system_fingerprint": "vllm-0.32.0"}
    llama = CHAT | {"id": "d", "timings": TIMINGS | {"cache_n": None}}
    with pytest.raises(PipelineError, match=r"holds answers of llama\.cpp and vLLM"):
        read_answer_counts(rows(tmp_path / "both", vllm, llama))


def test_names_and_metrics_are_each_of_one_engine():
    names = [one.name for one in ENGINES]
    prefixes = [one.metrics_prefix for one in ENGINES if one.metrics_prefix]
    owners = [one.model_owner for one in ENGINES if one.model_owner]
    for values in (names, prefixes, owners):
        assert len(set(values)) == len(values)
    assert all(engine_named(name).name == name for name in names)
    assert engine_named("no engine") is engine_named("") is UNKNOWN
    assert all(one.name in counts_remedy(one) for one in ENGINES)
    for one in ENGINES:
        assert one.gauges <= set(one.metrics.values())
        assert bool(one.metrics) == (one.page_counts.__qualname__ != "Engine.page_counts")


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("vLLM", "--speculative-config '{..., \"num_speculative_tokens\": 3}'"),
        ("llama.cpp", "--spec-draft-n-max 3"),
        ("SGLang", "--speculative-num-steps 3 --speculative-num-draft-tokens 4 "
         "--speculative-eagle-topk 1"),
        ("MLX", ""),
        ("", ""),
    ],
)  # fmt: skip
def test_flags_set_the_draft_length(name, flags):
    assert engine_named(name).length_flags.format(n=3, more=4) == flags


@pytest.mark.parametrize(("emitted", "drafts"), [(1.0, 0.0), (UNDRAFTED, 0.0), (1.02, math.nan)])
def test_a_page_of_vllm_without_counters_of_drafts_had_none(emitted, drafts):
    sums = {"passes": 100.0, "tokens": 100 * emitted + 7, "firsts": 7.0}
    counts = engine_named("vLLM").page_counts(PageSums("m", sums, []))
    assert [counts.drafts, counts.accepted] == pytest.approx([drafts, drafts], nan_ok=True)


@pytest.mark.parametrize(("name", "drafted"), [("vLLM", 5), ("llama.cpp", 2)])
def test_llama_cpp_drafts_no_more_than_was_asked_for(name, drafted):
    """Of four tokens prefill emits one, and the target adds one to a draft: two are drafted."""
    config = SimpleNamespace(
        drafter=None,
        decoding=SimpleNamespace(lookup=2, lookup_match="earliest"),
        distributions=SimpleNamespace(steps=4),
    )
    run = SimpleNamespace(length=5, counts=SimpleNamespace(engine=name))
    asked = SimpleNamespace(prompt=[1, 2, 3, 4, 5, 6, 7, 8, 1, 2], tokens=[3, 4, 5, 6])
    calls = StudyChecker._predict(SimpleNamespace(_config=config), run, asked)
    assert calls[0][0] == drafted
