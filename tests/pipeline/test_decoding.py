"""Decoding with a drafter against plain passes of the models, exact laws, and bad input."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from analysis import verification
from analysis.criteria import Additive, Mars
from pipeline import decoding, models, spec_bench
from pipeline.artifacts import Artifact, Draft, content_digest
from pipeline.decoding.choices import DRAFT, Greedy, Inversion, Noise, Race
from pipeline.decoding.drafters import Draft as Drafted
from pipeline.decoding.drafters import ModelDrafter, Nothing, PromptLookup, continuation
from pipeline.decoding.loop import Answer, decode
from pipeline.decoding.sequence import CachedSequence
from pipeline.decoding.verifiers import Match, Relaxed, SpeculativeSampling, Verifier
from pipeline.errors import PipelineError
from pipeline.methods import build_methods
from pipeline.models import LanguageModel
from pipeline.stages import Node
from tests.pipeline.fakes import record

V, LIMIT, CONTEXT = 24, 24, 1024
CPU = torch.device("cpu")
PROMPTS = [[5, 9, 5, 9, 5], list(range(3, 20)), [7]]


def tiny(seed: int, layers: int = 2) -> LanguageModel:
    """A random Qwen3 whose distributions are neither flat nor certain."""
    torch.manual_seed(seed)
    shape = SimpleNamespace(
        hidden_size=32, layers=layers, intermediate_size=48, heads=2, kv_heads=1
    )
    module = models.new_qwen3(shape, V)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 2:
                parameter.mul_(12)
    return models.wrap(module, f"tiny-{seed}", CPU, "float32", (), "test")


@pytest.fixture(scope="module")
def target() -> LanguageModel:
    return tiny(0)


@pytest.fixture(scope="module")
def drafter(target: LanguageModel) -> LanguageModel:
    """The target with noise on its weights: right often, but not always."""
    model = tiny(0)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.module.parameters():
            parameter.add_(
                0.05 * parameter.std() * torch.randn_like(parameter) if parameter.ndim == 2 else 0
            )
    return model


@torch.inference_mode()
def logits(model: LanguageModel, text: list[int]) -> torch.Tensor:
    """All logits (n, V) of a text, in one pass without a cache."""
    return model.module(input_ids=torch.tensor([text]), use_cache=False).logits[0]


def plain_greedy(model: LanguageModel, prompt: list[int], limit: int = LIMIT) -> list[int]:
    text = list(prompt)
    for _ in range(limit):
        text.append(int(logits(model, text)[-1].argmax()))
    return text[len(prompt) :]


def greedy(target: LanguageModel, drafter: Any, prompt: list[int], gamma: int) -> Answer:
    return decode(target, drafter, Match(Greedy()), prompt, gamma, LIMIT)


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("gamma", [1, 2, 5])
def test_strict_greedy_is_the_plain_loop_and_its_history_the_walk(
    target: LanguageModel, drafter: LanguageModel, prompt: list[int], gamma: int
) -> None:
    wanted = plain_greedy(target, prompt)
    answer = greedy(target, ModelDrafter(drafter, Greedy()), prompt, gamma)
    assert answer.tokens == wanted
    assert greedy(target, Nothing(CPU), prompt, 0).tokens == wanted
    assert greedy(target, PromptLookup(3, CPU), prompt, gamma).tokens == wanted
    drafted = logits(drafter, prompt + wanted)[len(prompt) : -1].argmax(1).tolist()
    right = [a == b for a, b in zip(drafted, wanted[1:], strict=True)]
    walk = verification.history(right, gamma)
    assert [(c.position - 1, c.drafted, c.accepted) for c in answer.calls] == walk
    assert sum(c.emitted for c in answer.calls) == LIMIT - 1


def test_the_walk_meets_both_outcomes(target: LanguageModel, drafter: LanguageModel) -> None:
    calls = [
        call
        for prompt in PROMPTS
        for call in greedy(target, ModelDrafter(drafter, Greedy()), prompt, 3).calls
    ]
    accepted, tested = sum(c.accepted for c in calls), sum(c.tested for c in calls)
    assert 0.2 < accepted / tested < 0.95
    assert any(c.accepted == 3 for c in calls)


def test_a_relaxed_rule_accepts_what_it_says(target: LanguageModel, drafter: LanguageModel) -> None:
    prompt, rule = PROMPTS[1], Additive(0.3)
    answer = decode(target, ModelDrafter(drafter, Greedy()), Relaxed(rule), prompt, 4, LIMIT)
    p = logits(target, prompt + answer.tokens).softmax(1)[len(prompt) - 1 :]
    relaxed = 0
    for call in answer.calls:
        at = range(call.position, call.position + call.accepted)
        for i in at:
            assert p[i, answer.tokens[i]] > p[i].max() - 0.3
            relaxed += int(p[i].argmax()) != answer.tokens[i]
        if not answer.ended:
            follow = call.position + call.accepted
            assert answer.tokens[follow] == int(p[follow].argmax())
    assert relaxed > 0


def test_races_decode_what_the_target_alone_decodes_with_the_same_noise(
    target: LanguageModel, drafter: LanguageModel
) -> None:
    for prompt in PROMPTS:
        race = Race(0.8, Noise(3, "a", LIMIT, CPU))
        alone = decode(target, Nothing(CPU), Match(race), prompt, 0, LIMIT)
        both = decode(target, ModelDrafter(drafter, race), Match(race), prompt, 4, LIMIT)
        assert both.tokens == alone.tokens
        assert any(call.accepted for call in both.calls)


def chi_square(counts: np.ndarray, law: np.ndarray) -> float:
    """The statistic less its mean, in standard deviations; cells expected below 5 are pooled."""
    expected = law.ravel() * counts.sum()
    small = expected < 5
    seen = np.append(counts.ravel()[~small], counts.ravel()[small].sum())
    wanted = np.append(expected[~small], expected[small].sum())
    statistic = ((seen - wanted) ** 2 / wanted)[wanted > 0].sum()
    freedom = np.count_nonzero(wanted) - 1
    return float((statistic - freedom) / np.sqrt(2 * freedom))


class Markov:
    """A model whose logits depend on the last token: the loop alone is what takes time."""

    label, device, eos, vocab_size = "markov", CPU, (), 8
    config = SimpleNamespace(get_text_config=lambda: SimpleNamespace())

    def __init__(self, seed: int) -> None:
        self.table = 1.5 * torch.randn((8, 8), generator=torch.Generator().manual_seed(seed))
        self.module = self

    def new_cache(self, capacity: int) -> Any:
        return SimpleNamespace(layers=[])

    def __call__(self, input_ids: torch.Tensor, logits_to_keep: int = 0, **_: Any) -> Any:
        return SimpleNamespace(logits=self.table[input_ids[:, -logits_to_keep:]])


@pytest.mark.parametrize("law", ["speculative", "races", "lookup"])
def test_sampled_answers_have_the_law_of_the_target(law: str) -> None:
    model, smaller = Markov(0), Markov(1)
    p = torch.softmax(model.table.double() / 1.3, 1).numpy()
    counts = np.zeros((8, 8, 8))
    for seed in range(1500):
        noise = Noise(seed, "p", 4, CPU)
        choice: Any = Race(1.3, noise) if law == "races" else Inversion(1.3, noise, DRAFT)
        verifier: Verifier = Match(choice) if law == "races" else SpeculativeSampling(1.3, noise)
        source: Any = PromptLookup(2, CPU) if law == "lookup" else ModelDrafter(smaller, choice)  # type: ignore[arg-type]
        answer = decode(model, source, verifier, [3, 5], 2, 4)  # type: ignore[arg-type]
        counts[tuple(answer.tokens[:3])] += 1
    joint = p[5][:, None, None] * p[:, :, None] * p[None]
    assert abs(chi_square(counts, joint)) < 4
    # and the test has power: the law of the drafter would be refused
    q = torch.softmax(smaller.table.double() / 1.3, 1).numpy()
    assert chi_square(counts, q[5][:, None, None] * q[:, :, None] * q[None]) > 20


def test_realised_acceptance_is_one_minus_total_variation_and_the_race_formula(
    target: LanguageModel, drafter: LanguageModel
) -> None:
    text = PROMPTS[1]
    rows = [logits(model, text)[-1:] for model in (target, drafter)]
    p, q = (row[0].double().softmax(0).numpy() for row in rows)
    both = torch.cat([rows[0], rows[0]])
    accepted = {"speculative": 0, "races": 0}
    draws = 600
    for seed in range(draws):
        noise = Noise(seed, "x", 2, CPU)
        draw, race = Inversion(1.0, noise, DRAFT), Race(1.0, noise)
        accepted["speculative"] += len(
            SpeculativeSampling(1.0, noise)
            .verify(both, Drafted(draw(rows[1], 0), draw.weights(rows[1])), 0)
            .path
        )
        accepted["races"] += len(Match(race).verify(both, Drafted(race(rows[1], 0)), 0).path)
    closed = sum(1 / np.maximum(p / p[i], q / q[i]).sum() for i in range(V))
    error = 4 * np.sqrt(0.25 / draws)
    assert accepted["speculative"] / draws == pytest.approx(1 - np.abs(p - q).sum() / 2, abs=error)
    assert accepted["races"] / draws == pytest.approx(closed, abs=error)


def test_mars_above_zero_adds_rank_two_in_the_low_margin(target: LanguageModel) -> None:
    z = torch.zeros((2, V))
    z[:, 4], z[:, 6] = 10.0, 9.5  # ratio 0.95
    q = torch.full((1, V), 1e-9, dtype=torch.float64)
    q[0, 6] = 1.0
    drafted = Drafted(torch.tensor([6]), q)
    noise = Noise(0, "a", 3, CPU)
    noise.uniforms[:] = 0.999  # the test p/q = 0.38 fails
    assert not SpeculativeSampling(1.0, noise).verify(z, drafted, 0).path
    assert not SpeculativeSampling(1.0, noise, Mars(0.96)).verify(z, drafted, 0).path
    assert SpeculativeSampling(1.0, noise, Mars(0.9)).verify(z, drafted, 0).path == (0,)


def test_a_tree_is_read_like_its_branches_and_keeps_one_path(target: LanguageModel) -> None:
    text, tree, parents = [3, 4, 5], [6, 7, 8, 9, 10], [-1, -1, 0, 1, 3]
    sequence = CachedSequence(target, 20)
    with torch.inference_mode():
        sequence.read(torch.tensor(text))
        found = sequence.extend(torch.tensor(tree), parents)
        branches = [[6], [7], [6, 8], [7, 9], [7, 9, 10]]
        wanted = torch.stack([logits(target, text + branch)[-1] for branch in branches])
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
        sequence.keep(3, (1, 3))
        after = sequence.extend(torch.tensor([11]))
    wanted = logits(target, [*text, 7, 9, 11])[-1]
    torch.testing.assert_close(after[0], wanted, atol=1e-4, rtol=1e-4)


def test_an_answer_stops_at_its_end_token(target: LanguageModel, drafter: LanguageModel) -> None:
    free = plain_greedy(target, PROMPTS[1])
    end = free[6]
    ended = replace(target, eos=(end,))
    for gamma in (1, 5):
        answer = greedy(ended, ModelDrafter(drafter, Greedy()), PROMPTS[1], gamma)
        assert answer.tokens == free[: free.index(end) + 1]
        assert answer.ended
        assert 1 + sum(c.emitted for c in answer.calls) == len(answer.tokens)
        assert all(c.accepted <= c.tested <= c.drafted for c in answer.calls)


def test_lookup_takes_the_latest_occurrence_of_the_longest_match() -> None:
    text = [1, 2, 3, 9, 2, 3, 8, 1, 2, 3]
    assert continuation(text, 3, 2) == [9, 2]  # 1 2 3 occurs once before
    assert continuation(text, 2, 2) == [8, 1]  # 2 3 occurs twice, the later counts
    assert continuation([4, 5], 3, 2) == []
    assert continuation([7, 7], 3, 4) == [7, 7, 7, 7]
    assert continuation([5, 1, 2, 1, 2], 2, 5) == [1, 2, 1, 2, 1]


GOOD = {"drafter": "model", "rule": "greedy", "draft_length": 3, "temperature": 0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"draft_length": 0}, r"decoding.methods\[0\].draft_length=0 is not allowed"),
        ({"draft_length": 2.5}, "draft_length=2.5"),
        ({"temperature": -0.5}, "temperature=-0.5 is not allowed"),
        ({"temperature": 1.0}, "temperature=1.0 is not allowed: give 0 for a rule"),
        ({"drafter": "eagle"}, "drafter=eagle is not allowed: give one of model, prompt_lookup"),
        ({"rule": "tree", "m": 2}, "chain"),
        ({"rule": "additive"}, "'t' is missing"),
        ({"sampling": "races"}, "either rule or sampling"),
        ({"draft_length": [3, 3]}, "given twice"),
    ],
)
def test_methods_that_make_no_sense_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        build_methods([GOOD | change])


def test_sampling_needs_heat_and_lists_multiply() -> None:
    with pytest.raises(PipelineError, match="above 0: at 0 take rule: greedy"):
        build_methods(
            [{"drafter": "model", "sampling": "races", "draft_length": 3, "temperature": 0}]
        )
    methods = build_methods(
        [
            GOOD | {"draft_length": [1, 2]},
            {
                "drafter": "model",
                "rule": "mars",
                "theta": [0.8, 0.9],
                "draft_length": 3,
                "temperature": [0, 1.0],
            },
        ]
    )
    assert len(set(methods)) == 6
    with pytest.raises(PipelineError, match="at least one"):
        build_methods([])


def test_prompts_that_cannot_be_decoded_say_why(target: LanguageModel) -> None:
    with pytest.raises(PipelineError, match="prompt is empty"):
        greedy(target, Nothing(CPU), [], 0)
    with pytest.raises(PipelineError, match="1020 tokens and an answer of 24 exceed the context"):
        greedy(target, Nothing(CPU), [5] * 1020, 0)


METHODS = [
    GOOD,
    GOOD | {"drafter": "prompt_lookup"},
    {"drafter": "model", "rule": "mars", "theta": 0.9, "draft_length": 3, "temperature": 0},
    {"drafter": "model", "sampling": "speculative", "draft_length": 2, "temperature": 1.0},
]


@pytest.fixture
def stage(
    target: LanguageModel, drafter: LanguageModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Any:
    """The stage on the tiny pair: a function of prompts that returns the draft it wrote."""
    tokenizer = SimpleNamespace(
        get_vocab=lambda: {str(i): i for i in range(V)},
        decode=lambda ids, **_: " ".join(map(str, ids)),
    )
    monkeypatch.setattr(decoding, "load_tokenizer", lambda *_: tokenizer)
    monkeypatch.setattr(
        decoding,
        "load_model",
        lambda _, settings, key: {"a": target, "b": drafter}[settings["label"]],
    )

    def run(prompts: list[list[int]], name: str = "draft") -> Draft:
        rows = [
            {"prompt_id": str(at), "source": "s", "token_ids": ids}
            for at, ids in enumerate(prompts)
        ]
        upstream = SimpleNamespace(read=lambda: pa.Table.from_pylist(rows))
        node = Node(
            "decoding",
            "tiny",
            {
                "target": {},
                "drafter": {},
                "prompts": len(prompts),
                "steps": 12,
                "seed": 0,
                "lookup": 2,
            },
            settings={
                "target": {"label": "a", "path": ""},
                "drafter": {"label": "b", "path": ""},
                "methods": build_methods(METHODS),
            },
        )
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        draft = Draft(folder, "decoding")
        decoding.compute(node, {"prompts": [upstream]}, draft)  # type: ignore[list-item]
        record(folder, "decoding")
        return draft

    return run


def content(draft: Draft) -> dict[str, Any]:
    artifact = Artifact(draft.directory)
    return {
        name: artifact.read(name).to_pylist()
        for name in ("data", "calls", "trajectory", "indicators", "failures")
    }


def test_the_stage_records_a_failing_prompt_and_goes_on(stage: Any) -> None:
    draft = stage([PROMPTS[0], [], PROMPTS[1]])
    found = content(draft)
    assert found["failures"] == [
        {"prompt_id": "1", "reason": "the prompt is empty: give at least one token"}
    ]
    assert draft.facts["failed_prompts"] == 1
    assert {row["prompt_id"] for row in found["data"]} == {"0", "2"}
    runs = draft.facts["runs"]
    assert [run["method"] for run in runs[:2]] == ["autoregressive", "autoregressive"]
    for row in found["data"]:
        if runs[row["run"]]["lossless"] and row["temperature"] == 0:
            assert row["agreement"] == 1.0
    with pytest.raises(PipelineError, match="no prompt can be decoded: the prompt is empty"):
        stage([[], []], "none")


def test_likelihoods_and_indicators_are_those_of_plain_passes(
    stage: Any, target: LanguageModel, drafter: LanguageModel
) -> None:
    found = content(stage([PROMPTS[1]]))
    for row in found["data"]:
        text = PROMPTS[1] + row["token_ids"]
        chosen = logits(target, text)[len(PROMPTS[1]) - 1 : -1].double().log_softmax(1)
        wanted = sum(chosen[i, token].item() for i, token in enumerate(row["token_ids"]))
        assert row["log_likelihood"] == pytest.approx(wanted, abs=1e-3)
    greedy_rows = [row for row in found["indicators"] if row["rule"] == "greedy"]
    answer = found["data"][0]["token_ids"]
    drafted = logits(drafter, PROMPTS[1] + answer)[len(PROMPTS[1]) - 1 : -1].argmax(1).tolist()
    assert [row["accepted"] for row in greedy_rows] == [
        a == b for a, b in zip(drafted, answer, strict=True)
    ]


def test_a_killed_stage_resumes_and_ends_with_the_same_content(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = content(stage(PROMPTS, "whole"))
    real = decoding.decode_prompt
    done: list[int] = []
    kills = [True]

    def counted(pair: Any, row: Any, turn: int) -> Any:
        if len(done) == 2 and kills:
            kills.pop()
            raise KeyboardInterrupt
        done.append(turn)
        return real(pair, row, turn)

    monkeypatch.setattr(decoding, "decode_prompt", counted)
    with pytest.raises(KeyboardInterrupt):
        stage(PROMPTS, "killed")
    assert content(stage(PROMPTS, "killed")) == whole
    assert done == [0, 1, 2]


def test_answers_have_spec_benchs_format_and_questions_become_prompts(stage: Any) -> None:
    draft = stage([PROMPTS[0]])
    path = draft.directory / "timings/answers/greedy_draft_length=3_temperature=0.jsonl"
    [answer] = [json.loads(line) for line in path.read_text().splitlines()]
    [choice] = answer["choices"]
    assert answer["question_id"] == 0
    assert choice["new_tokens"] == [12]
    assert sum(choice["accept_lengths"]) == 11
    assert choice["decoding_steps"] == [len(choice["accept_lengths"])]
    assert choice["wall_time"][0] > 0
    question = {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]}
    assert spec_bench.as_chat(question)["messages"] == [{"role": "user", "content": "Write."}]
    assert spec_bench.as_chat(question)["prompt_id"] == "81"
    assert spec_bench.as_chat(question)["category"] == "writing"


def test_seconds_are_no_content() -> None:

    assert content_digest({"data.parquet": "x", "timings/runs.parquet": "y"}) == content_digest(
        {"data.parquet": "x", "timings/runs.parquet": "z", "plan.json": "w"}
    )
