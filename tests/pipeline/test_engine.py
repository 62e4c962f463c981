"""The command engine on what vLLM and llama.cpp wrote, and on files changed so that it fails."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis.decoding.replay import Replayed
from pipeline import engine
from tests.engines.samples import SAMPLES

COUNT = 6  # answers of the samples, of 30
STUDY = ["study=mini", "target=mini_large", "distributions.steps=48", "distributions.k=16"]


def written(
    folder: Path, name: str, change: Callable[[dict[str, Any]], None] | None = None
) -> Path:
    """Write the first answers of a sample, changed, without pages."""
    path = folder / f"{name}.jsonl"
    with gzip.open(SAMPLES / path.name.replace(".jsonl", ".jsonl.gz"), "rt") as file:
        rows = [json.loads(line) for line, _ in zip(file, range(COUNT), strict=False)]
    for row in rows if change else ():
        change(row)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("check")


def check(outputs: Path, *words: str | Path) -> None:
    engine.main([*map(str, words), *STUDY, f"outputs={outputs}"])


def test_a_draft_model_in_vllm(
    outputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drafted, alone = written(tmp_path, "vllm_draft"), written(tmp_path, "vllm_alone")
    check(outputs, alone, drafted)
    screen = capsys.readouterr().out
    assert "vLLM, mini-large, drafts of 4 by mini-drafter:" in screen
    assert "pass  texts      6 of 6 equal those without drafts" in screen
    calls = re.search(r"pass  calls      (\d+) of (\d+) equal, last ones aside; 6 of 6", screen)
    assert calls is not None
    assert calls[1] == calls[2]
    assert int(calls[1]) > 60
    certified = re.search(r"pass  certified  0 of (\d+) certified tokens were rejected", screen)
    assert certified is not None
    assert int(certified[1]) > 30
    rates = re.findall(r"\d: (\d\.\d+) and (\d\.\d+)", screen)
    assert len(rates) == 4
    assert all(ours == theirs for ours, theirs in rates)


def test_look_up_in_vllm_is_the_earliest(
    outputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = written(tmp_path, "vllm_alone"), written(tmp_path, "vllm_ngram")
    check(outputs, *files, "decoding.lookup_match=earliest", "drafter=none")
    screen = capsys.readouterr().out
    assert "by prompt look-up:" in screen
    assert "6 of 6 answers as predicted" in screen
    with pytest.raises(SystemExit) as error:
        check(outputs, *files, "drafter=none")  # the latest
    assert error.value.code == 1
    assert "FAIL  calls" in capsys.readouterr().out


def test_a_clock_that_cannot_be_right_fails_nothing(
    outputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All passes with drafts together took a millisecond; pages of 30 answers are not of these."""
    files = written(tmp_path, "vllm_alone"), written(tmp_path, "vllm_ngram")
    about = {"engine": "vLLM", "version": "1", "concurrent": 1, "answers_of_pages": 30}
    for file in files:
        file.with_suffix(".json").write_text(json.dumps(about))
        for page in ("before", "after"):
            shutil.copy(SAMPLES / f"{file.stem}.{page}.txt", tmp_path)
    before, after = (files[1].with_suffix(f".{page}.txt") for page in ("before", "after"))
    seconds = r"(vllm:inter_token_latency_seconds_sum\{.*\}) (.*)"
    found = re.search(seconds, before.read_text())
    assert found is not None
    after.write_text(re.sub(seconds, rf"\g<1> {float(found[2]) + 1e-3}", after.read_text()))
    own = ["decoding.lookup_match=earliest", "drafter=none"]
    check(outputs, *files, *own)
    assert re.search(r"vllm_ngram\.jsonl: a step would cost -\d", capsys.readouterr().out)


def test_another_drafter_and_another_text_fail(
    outputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One accepted token fewer in a call; and a token that is far from the most probable."""

    def fewer(row: dict[str, Any]) -> None:
        counts = row["response"]["metrics"]["speculative_decoding"]
        at = next(i for i, kept in enumerate(counts["per_step_accepted"]) if kept)
        kept = counts["per_step_accepted"][at]
        counts["per_step_accepted"][at] -= 1
        counts["num_accepted_draft_tokens"] -= 1
        counts["acceptance_histogram"][kept] -= 1
        counts["acceptance_histogram"][kept - 1] += 1

    def other(row: dict[str, Any]) -> None:
        row["response"]["choices"][0]["token_ids"][20] = 1000

    for change, failed in ((fewer, "calls"), (other, "texts")):
        files = written(tmp_path, "vllm_alone"), written(tmp_path, "vllm_draft", change)
        with pytest.raises(SystemExit):
            check(outputs, *files)
        assert f"FAIL  {failed}" in capsys.readouterr().out


def test_short_answers_compare_nothing(
    outputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A token an answer has no pass behind the prompt's; a single draft may end behind it."""

    def one_token(row: dict[str, Any]) -> None:
        row["response"]["choices"][0]["token_ids"] = row["response"]["choices"][0]["token_ids"][:1]

    def one_call(row: dict[str, Any]) -> None:
        one_token(row)
        row["response"]["metrics"]["speculative_decoding"] = {
            "num_spec_steps": 1, "num_draft_tokens": 4, "num_accepted_draft_tokens": 0,
            "acceptance_histogram": [1, 0, 0, 0, 0], "per_step_accepted": [0],
            "per_step_drafted": [4],
        }  # fmt: skip

    with pytest.raises(SystemExit):
        check(outputs, written(tmp_path, "vllm_alone", one_token),
              written(tmp_path, "vllm_draft", one_call))  # fmt: skip
    screen = capsys.readouterr().out
    assert "FAIL  calls      nothing was compared" in screen
    assert "FAIL  tokens     nothing was compared" in screen


def test_sums_that_may_lie_behind_the_end_compare_nothing() -> None:
    replayed = Replayed()
    replayed.add_sums("a", [(3, 0)], accepted=3, beyond=3)
    replayed.add("b", [(3, 3)], [(3, 0)])
    assert replayed.answers == 0
    replayed.add_sums("c", [(3, 2), (3, 1)], accepted=3, beyond=0)
    assert (replayed.answers, replayed.equal_answers) == (1, 1)


def test_names_of_answers_may_have_an_at(
    outputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def named(row: dict[str, Any]) -> None:
        row["custom_id"] += "@host"

    folder = tmp_path / "k=5"  # and a file whose name holds "="
    folder.mkdir()
    drafted = written(folder, "vllm_draft", named)
    check(outputs, written(tmp_path, "vllm_alone", named), drafted)
    assert "; 6 of 6 answers as predicted" in capsys.readouterr().out


def test_a_certified_token_that_was_rejected_is_counted() -> None:
    import numpy as np

    replayed = Replayed()
    certified = np.zeros((2, 8), dtype=bool)
    certified[0, 1] = certified[1, 2] = certified[0, 4] = True  # at depth 1, 2, and 1
    replayed.certify([(3, 1), (3, 0)], certified)  # from step 1: accepted, rejected; step 3
    assert (replayed.tested, replayed.rejected) == (2, 1)
    replayed.certify([(3, 3)], certified)
    assert (replayed.tested, replayed.rejected) == (4, 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no file was given, and not BASE and SPEC"),
        (["vllm_draft"], "a study to check with was given, and not BASE and SPEC"),
        (["missing.jsonl", "missing.jsonl"], "missing.jsonl"),
        (["vllm_alone", "vllm_alone"], "vllm_alone.jsonl counts no drafts: start this server with"),
        (["vllm_draft", "vllm_ngram"], "vllm_draft.jsonl counts drafts: give the run without"),
        (["vllm_alone", "llama_ngram", "drafter=none"],
         "decoding.draft_length must be given: llama.cpp's ans"),
    ],
)  # fmt: skip
def test_wrong_files_are_one_line(
    words: list[str], message: str, outputs: Path, tmp_path: Path
) -> None:
    words = [
        str(written(tmp_path, word)) if word.startswith(("vllm", "llama")) else word
        for word in words
    ]
    with pytest.raises(SystemExit, match=message):
        check(outputs, *words)


def timed(folder: Path, name: str, seconds: float, sample: str = "vllm_draft") -> Path:
    """Write a sample as if every request had taken about as long; a seventh more or less."""

    def clocked(row: dict[str, Any]) -> None:
        row["seconds"] = seconds * (1 + (int(row["custom_id"][-1], 36) % 3 - 1) / 7)

    return written(folder, sample, clocked).rename(folder / f"{name}.jsonl")


def test_the_recommendation_is_the_fastest_length(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Requests take 4 s alone, and 2 s with drafts of 4."""
    alone = timed(tmp_path, "alone", 4.0, "vllm_alone")
    files = [alone, timed(tmp_path, "four", 2.0)]
    engine.main(list(map(str, files)))
    screen = capsys.readouterr().out
    assert "num_speculative_tokens = 4: 2.00 times [2.00, 2.00]; 5 was not measured, ask" in screen
    assert '"num_speculative_tokens": 4}\'' in screen
    engine.main([*map(str, files), str(timed(tmp_path, "slow", 8.0))])
    screen = capsys.readouterr().out
    assert "num_speculative_tokens = 4: 2.00 times [2.00, 2.00]" in screen
    assert "0.50 times [0.50, 0.50]" in screen
    engine.main([str(alone), str(tmp_path / "slow.jsonl")])
    assert "no drafts: num_speculative_tokens = 4: 0.50 times" in capsys.readouterr().out


def test_pages_alone_give_a_recommendation(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("vllm_alone", "vllm_draft")
    engine.main([str(SAMPLES / f"{name}.after.txt") for name in names])
    screen = capsys.readouterr().out
    assert re.search(r"2\.592 +5\.62 passes +0\.46 times", screen)
    assert "num_speculative_tokens = 4: 0.46 times; 3 was not measured, ask with 3 next" in screen


def test_a_single_file_says_what_it_counts(capsys: pytest.CaptureFixture[str]) -> None:
    engine.main([str(SAMPLES / "llama_ngram.jsonl.gz")])
    screen = capsys.readouterr().out
    assert re.search(r"168 of 284 +1,410 +1,242 +1\.135", screen)
    assert "for the speed give the same server without drafts as well" in screen


def test_llama_cpps_clock_decides(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("llama_alone", "llama_ngram")
    files = [str(SAMPLES / f"{name}.jsonl.gz") for name in names]
    engine.main([*files, "decoding.draft_length=4"])
    screen = capsys.readouterr().out
    assert (
        "--spec-draft-n-max = 4: 1.07 times [0.95, 1.20] (not sure: the interval holds 1); 5"
        in (screen)
    )
