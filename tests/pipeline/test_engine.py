"""The command engine on what vLLM and llama.cpp wrote, and on files changed so that it fails."""

import csv
import json
import re

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from pipeline import engine
from pipeline.core.paths import ROOT
from pipeline.engine_checks import CallComparison
from pipeline.engines.answers.draft_counts import read_answer_counts
from pipeline.engines.answers.logs import read_log, stacked
from tests.engines import SAMPLES, answer_ids, lines

COUNT = 6  # answers of the samples, of 30
STUDY = ["study=mini", "target=mini_large", "distributions.steps=48", "distributions.k=16"]
MINI, SMOLLM2 = 2048, 49_152  # tokens of the vocabularies
LOOKUP = ["decoding.lookup_match=earliest", "drafter=none"]


def written(folder, name, change=None):
    """Write the first answers of a sample, changed, without pages."""
    rows = lines(name)[:COUNT]
    if change is not None:
        for row in rows:
            change(row)
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    return tmp_path_factory.mktemp("check")


def check(outputs, *words):
    engine.main([*map(str, words), *STUDY, f"outputs={outputs}"])


def log_of(name, vocab_size=MINI):
    return read_log(SAMPLES / f"{name}.jsonl.gz", 256, vocab_size)


@pytest.mark.parametrize(
    ("name", "vocab_size", "answers", "steps", "k"),
    [
        ("vllm_logs_20", MINI, 30, 12, 20),
        ("vllm_logs_256", MINI, 3, 6, 256),
        ("vllm_chat", MINI, 1, 8, 20),
        ("llama_logs_20", SMOLLM2, 10, 12, 20),
        ("llama_logs_256", SMOLLM2, 1, 6, 256),
    ],
)
def test_logs_are_read_whole(name, vocab_size, answers, steps, k):
    log = log_of(name, vocab_size)
    assert (log.answers, log.k, log.excluded, log.given_ids) == (answers, k, {}, True)
    assert [len(of_answer) for of_answer in log.trajectories.values()] == [steps] * answers
    # without the vocabulary, as stage prompts reads it, llama.cpp's float32 sums are not judged
    assert read_log(SAMPLES / f"{name}.jsonl.gz", 1).answers == answers


def test_the_values_are_those_of_the_model():
    """Within the error that the reader gives the log: float32 passes of the embedded target."""
    model = AutoModelForCausalLM.from_pretrained("assets/mini/large", dtype=torch.float32)
    for name in ("vllm_logs_20", "vllm_logs_256"):
        log = log_of(name)
        columns = stacked(log.trajectories)
        begin = 0
        for line in lines(name):
            prompt, answer = line["request"]["prompt"], answer_ids(line)
            with torch.inference_mode():
                logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
            ours = torch.log_softmax(logits.double(), -1).numpy()
            rows = slice(begin, begin + len(answer))
            begin += len(answer)
            assert columns["token_id"][rows].tolist() == answer == ours.argmax(1).tolist()
            theirs = columns["log_probs"][rows]
            there = np.take_along_axis(ours, columns["top_ids"][rows], axis=1)
            assert np.abs(theirs - there).max() <= log.error
        assert begin == len(columns["token_id"])


@pytest.mark.parametrize(
    "runs", [("vllm_alone", "vllm_draft", "vllm_ngram"), ("llama_alone", "llama_ngram")]
)
def test_answers_keep_their_tokens_and_drafts_changed_no_text(runs):
    first = [answer_ids(line) for line in lines(runs[0])]
    for name in runs:
        answers = read_answer_counts(SAMPLES / f"{name}.jsonl.gz").answers
        assert list(answers) == [line["custom_id"] for line in lines(name)]
        prompts = [answer.prompt for answer in answers.values()]
        assert prompts == [line["request"]["prompt"] for line in lines(name)]
        assert [answer.tokens for answer in answers.values()] == first


def test_a_draft_model_in_vllm(outputs, tmp_path, capsys):
    """Names may hold an at, files an equals sign; models read a text once for all runs."""

    def named(row):
        row["custom_id"] += "@host"

    folder = tmp_path / "k=5"
    folder.mkdir()
    drafted = written(folder, "vllm_draft", named)
    check(outputs, written(tmp_path, "vllm_alone", named), drafted, drafted)
    screen = capsys.readouterr().out
    assert screen.count("vLLM, mini-large, drafts of 4 by mini-drafter:") == 2
    assert "pass  texts      6 of 6 equal those without drafts" in screen
    equal = re.search(r"pass  calls      (\d+) of \1 equal, last ones aside; 6 of 6", screen)
    assert int(equal[1]) > 60
    certified = re.search(r"pass  certified  0 of (\d+) certified tokens were rejected", screen)
    assert int(certified[1]) > 30
    assert re.search(r"pass  tokens     2\.\d+ per pass predicted along vllm_alone\.jsonl", screen)


@pytest.mark.thorough
def test_the_readmes_calls_of_committed_answers(outputs, capsys):
    """The command of their row prints its value, and the lines of docs/engine.md."""
    with (ROOT / "benchmarks/results/carries_over.csv").open() as file:
        (row,) = (row for row in csv.DictReader(file) if "tests/engines" in row["command"])
    engine.main([*row["command"].split()[3:], f"outputs={outputs}"])
    screen = capsys.readouterr().out
    assert f"pass  calls      {row['value']} of {row['value']} equal" in screen
    page = " ".join((ROOT / "docs/engine.md").read_text().split())
    checks = [" ".join(line.split()) for line in screen.splitlines() if "  pass  " in line]
    assert len(checks) == 4
    assert all(line in page for line in checks)


def test_look_up_in_vllm_is_the_earliest(outputs, tmp_path, capsys):
    files = written(tmp_path, "vllm_alone"), written(tmp_path, "vllm_ngram")
    check(outputs, *files, *LOOKUP)
    screen = capsys.readouterr().out
    assert "by prompt look-up:" in screen
    assert "6 of 6 answers as predicted" in screen
    with pytest.raises(SystemExit) as error:
        check(outputs, *files, "drafter=none")  # the latest
    assert error.value.code == 1
    assert "FAIL  calls" in capsys.readouterr().out


def test_a_clock_that_cannot_be_right_fails_nothing(tmp_path, capsys):
    """All passes with drafts together took a millisecond."""
    page, seconds = tmp_path / "page", r"(vllm:inter_token_latency_seconds_sum\{.*\}) .*"
    page.write_text(re.sub(seconds, r"\1 1e-3", (SAMPLES / "vllm_ngram.after.txt").read_text()))
    engine.main([str(SAMPLES / "vllm_alone.after.txt"), str(page)])
    assert re.search(r"page: a step would cost -\d", capsys.readouterr().out)


def fewer(row):
    """Accept one token fewer in a call."""
    counts = row["response"]["metrics"]["speculative_decoding"]
    at = next(i for i, kept in enumerate(counts["per_step_accepted"]) if kept)
    kept = counts["per_step_accepted"][at]
    counts["per_step_accepted"][at] -= 1
    counts["num_accepted_draft_tokens"] -= 1
    counts["acceptance_histogram"][kept] -= 1
    counts["acceptance_histogram"][kept - 1] += 1


def other(row):
    """Put a token that is far from the most probable."""
    row["response"]["choices"][0]["token_ids"][20] = 1000


def ended(row):
    """End the answer ten tokens earlier."""
    del row["response"]["choices"][0]["token_ids"][-10:]


@pytest.mark.parametrize(
    ("change", "failed"), [(fewer, "calls"), (other, "texts"), (ended, "texts")]
)
def test_another_drafter_and_another_text_fail(change, failed, outputs, tmp_path, capsys):
    files = written(tmp_path, "vllm_alone"), written(tmp_path, "vllm_draft", change)
    with pytest.raises(SystemExit):
        check(outputs, *files)
    assert f"FAIL  {failed}" in capsys.readouterr().out


def test_short_answers_compare_nothing(outputs, tmp_path, capsys):
    """A token an answer has no pass behind the prompt's; a single draft may end behind it."""

    def short(row):
        del row["response"]["choices"][0]["token_ids"][1:]
        if row["response"].get("metrics"):
            row["response"]["metrics"]["speculative_decoding"] = {
                "num_spec_steps": 1, "num_draft_tokens": 4, "num_accepted_draft_tokens": 0,
                "acceptance_histogram": [1, 0, 0, 0, 0], "per_step_accepted": [0],
                "per_step_drafted": [4],
            }  # fmt: skip

    files = (written(tmp_path, name, short) for name in ("vllm_alone", "vllm_draft"))
    with pytest.raises(SystemExit):
        check(outputs, *files)
    screen = capsys.readouterr().out
    assert "FAIL  calls      nothing was compared" in screen
    assert "FAIL  tokens     nothing was compared" in screen


def test_sums_that_may_lie_behind_the_end_compare_nothing():
    replayed = CallComparison()
    replayed.add_sums("a", [(3, 0)], accepted=3, beyond=3)
    replayed.add("b", [(3, 3)], [(3, 0)])
    assert replayed.answers == 0
    replayed.add_sums("c", [(3, 2), (3, 1)], accepted=3, beyond=0)
    assert (replayed.answers, replayed.equal_answers) == (1, 1)


def test_a_certified_token_that_was_rejected_is_counted():
    replayed = CallComparison()
    certified = np.zeros((2, 8), dtype=bool)
    certified[0, 1] = certified[1, 2] = certified[0, 4] = True  # at depth 1, 2, and 1
    replayed.certify([(3, 1), (3, 0)], certified)  # from step 1: accepted, rejected; step 3
    assert (replayed.tested, replayed.rejected) == (2, 1)
    replayed.certify([(3, 3)], certified)
    assert (replayed.tested, replayed.rejected) == (4, 1)


def hot(row):
    row["request"]["temperature"] = 0.5


def without_ids(row):
    row["request"]["prompt"] = "a text"


@pytest.mark.parametrize(
    ("words", "change", "message"),
    [
        (["vllm_draft"], None, "a study to check with was given, and not BASE and SPEC"),
        (["vllm_alone", "vllm_alone"], None, "vllm_alone.jsonl counts no drafts"),
        (["vllm_alone.after.txt", "llama_ngram"], None, "is of vLLM and .*llama_ngram.* of llama"),
        (["llama_alone", "llama_ngram", "drafter=none"], None, "draft_length must be given"),
        (["vllm_alone", "vllm_draft"], hot, "was sampled at temperature 0.5"),
        (["vllm_alone", "vllm_draft"], without_ids, "lacks the token ids of its prompt"),
    ],
)  # fmt: skip
def test_wrong_files_are_one_line(words, change, message, outputs, tmp_path):
    files = [
        SAMPLES / word if word.endswith(".txt") else written(tmp_path, word, change)
        for word in words
        if word.startswith(("vllm", "llama"))
    ]
    with pytest.raises(SystemExit, match=message):
        check(outputs, *files, *words[len(files) :])


def timed(folder, name, seconds, sample="vllm_draft"):
    """Write a sample as if every request had taken about as long; a seventh more or less."""

    def clocked(row):
        row["seconds"] = seconds * (1 + (int(row["custom_id"][-1], 36) % 3 - 1) / 7)

    return str(written(folder, sample, clocked).rename(folder / f"{name}.jsonl"))


def test_the_recommendation_is_the_fastest_length(tmp_path, capsys):
    """Requests take 4 s alone, and 2 or 8 s with drafts of 4."""
    alone = timed(tmp_path, "alone", 4.0, "vllm_alone")
    fast, slow = timed(tmp_path, "four", 2.0), timed(tmp_path, "slow", 8.0)
    engine.main([alone, fast, slow])
    screen = capsys.readouterr().out
    assert "num_speculative_tokens = 4: 2.00 times [2.00, 2.00]; 5 was not measured, ask" in screen
    assert '"num_speculative_tokens": 4}\'' in screen
    assert "0.50 times [0.50, 0.50]" in screen
    engine.main([alone, slow])
    assert (
        "no drafts: the best length measured, num_speculative_tokens = 4, is 0.50 times [0.50, "
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["vllm_alone.after.txt", "vllm_draft.after.txt"],
         [r"2\.592 +5\.62 passes +0\.46 times",
          r"no drafts: .*_tokens = 4, is 0\.46 times as fast; .* costs 1\.15 .* no length pays"]),
        (["llama_ngram.jsonl.gz"], [r"168 of 284 +1,410 +1,242 +1\.135", "for the speed"]),
        (["llama_alone.jsonl.gz", "llama_ngram.jsonl.gz", "decoding.draft_length=4"],
         [r"not decided, .* holds 1: --spec-draft-n-max = 4: 1\.07 times \[0\.94, 1\.21\]\n"]),
        (["vllm_alone.jsonl.gz", "vllm_draft.jsonl.gz"],
         [r"no recommendation: vllm_draft\S+ does not tell seconds"]),
    ],
)  # fmt: skip
def test_what_the_screen_says_of_samples(words, shown, capsys):
    """Pages alone; a single file; llama.cpp's own clock."""
    engine.main([word if "=" in word else str(SAMPLES / word) for word in words])
    screen = capsys.readouterr().out
    assert all(re.search(part, screen) for part in shown)
