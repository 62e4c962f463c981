"""A target with its drafter: how a method decodes with the two, and how they read answers again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from analysis.trees.sibling_rates import index_entropies
from analysis.trees.topology import Topology
from pipeline.core.columns import Row
from pipeline.core.errors import PipelineError
from pipeline.core.stage import Json, Task
from pipeline.core.workers import out_of_memory
from pipeline.decoding import sampling as choices
from pipeline.decoding.drafters import (
    Drafter,
    PromptLookup,
    cache_columns_beyond_text,
    model_drafter,
)
from pipeline.decoding.loop import Answer, Prefill, check_prompt, decode, prefill
from pipeline.decoding.verification import (
    ExactMatch,
    RuleVerifier,
    SampledPath,
    SpeculativeSampling,
    Verifier,
)
from pipeline.models.eagle3.drafter import Eagle3Drafter
from pipeline.models.language_model import LanguageModel
from pipeline.models.loading import load_model, load_pair
from pipeline.models.logit_comparison import read_drafter
from pipeline.models.logit_statistics import argmax, logit_statistics, ranks_of
from pipeline.models.tokens import common_rows
from pipeline.settings.methods import RACES, Method, with_baselines

T = TypeVar("T")
WARM_UP = 8  # tokens decoded before anything is timed


@dataclass(frozen=True)
class Prompt:
    """A prompt that is decoded; its sampling noise depends on its id."""

    prompt_id: str
    token_ids: list[int]
    source: str = ""


@dataclass(frozen=True)
class DecodingSession:
    """A target, its drafter (None where all methods do without), and the settings of both."""

    target: LanguageModel
    drafter: LanguageModel | Eagle3Drafter | None
    runs: list[Method]  # baselines first
    steps: int
    seed: int
    lookup: int  # the most tokens that look-up matches
    lookup_match: str = "latest"  # or "earliest"


def load_session(
    task: Task, methods: Sequence[Method], tokenizer: Any, steps: int
) -> DecodingSession:
    """Load both models and cut their logits to the rows that both have."""
    runtime, settings = task.runtime, task.settings
    drafter: LanguageModel | Eagle3Drafter | None = None
    if len(runtime.models) == 1:
        target = load_model(*runtime.models)
        target.check_drafts(runtime.models[0].key)
        rows = target.vocab_size
    else:
        target, drafter = load_pair(*runtime.models)
        tokens = 1 + max(tokenizer.get_vocab().values())
        rows = common_rows(target.vocab_size, drafter.vocab_size, tokens, runtime.pair)
        drafter = replace(drafter, vocab_size=rows, label="the drafter")
    if any(method.tree is not None for method in methods):
        for model in (target, drafter):
            if isinstance(model, LanguageModel):  # a head reads with attention of its own
                model.check_trees()
    return DecodingSession(
        # reasons of failures are kept, and outlive the labels of today
        replace(target, vocab_size=rows, label="the target"),
        drafter,
        runs=with_baselines(methods),
        steps=steps,
        **{name: settings[name] for name in ("seed", "lookup", "lookup_match")},
    )


def or_reason(work: Callable[[], T], device: torch.device) -> tuple[T | None, str | None]:
    """Return the result of `work` on a prompt, or the reason why there is none."""
    try:
        return work(), None
    except PipelineError as error:
        reason = str(error)
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        reason = f"out of memory: {error}".splitlines()[0]
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return None, reason


def check_fits(pair: DecodingSession, prompt: Prompt) -> None:
    """Check that a prompt and its answer fit into the contexts of the models that decode it."""
    models = [pair.target]
    if isinstance(pair.drafter, LanguageModel) and any(run.drafter == "model" for run in pair.runs):
        models.append(pair.drafter)
    for model in models:
        check_prompt(model, prompt.token_ids, pair.steps)


def read_prompt(pair: DecodingSession, prompt: Prompt, steps: int) -> Prefill:
    """Read a prompt once for all methods; each decodes an answer of at most `steps` tokens."""
    layers = pair.drafter.layers if isinstance(pair.drafter, Eagle3Drafter) else ()
    drafted = max(cache_columns_beyond_text(method.topology) for method in pair.runs)
    return prefill(pair.target, prompt.token_ids, steps, layers, drafted)


def decode_timed(
    pair: DecodingSession, method: Method, prompt: Prompt, read: Prefill
) -> tuple[Answer, int | None]:
    """Decode one prompt with one method; return the answer and the peak of CUDA memory."""
    device, length = pair.target.device, method.draft_length
    noise = choices.Noise(pair.seed, prompt.prompt_id, read.limit, device, draft_length=length)
    choice, verifier = scheme_of(method, noise)
    drafter = drafter_of(pair, method, choice)
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    answer = decode(pair.target, drafter, verifier, read, length, read.limit)
    return answer, torch.cuda.max_memory_allocated(device) if cuda else None


def warm_up(pair: DecodingSession, prompts: Sequence[Prompt]) -> None:
    """Decode a few tokens with every method, so that no first call is timed."""

    def warm(prompt: Prompt) -> bool:
        check_fits(pair, prompt)
        read = read_prompt(pair, prompt, WARM_UP)
        for method in pair.runs:
            decode_timed(pair, method, prompt, read)
        return True

    reasons = []
    for prompt in prompts:
        done, reason = or_reason(partial(warm, prompt), pair.target.device)
        if done:
            return
        reasons.append(reason)
    raise PipelineError(f"no prompt can be decoded: {reasons[0]}")


def drafter_of(pair: DecodingSession, method: Method, choice: choices.Sampler) -> Drafter:
    """Return the drafter of `method`, whose tokens are chosen by `choice`."""
    device, tree = pair.target.device, method.topology
    if method.drafter == "none":
        return Drafter(device)
    if method.drafter == "prompt_lookup":
        return PromptLookup(pair.lookup, device, pair.lookup_match)
    assert pair.drafter is not None
    return model_drafter(pair.drafter, choice, tree)


def scheme_of(method: Method, noise: choices.Noise) -> tuple[choices.Sampler, Verifier]:
    """Return the choice of drafted tokens and the verifier of `method`."""
    t = method.temperature
    if method.sampling == RACES:
        race = choices.GumbelSampler(t, noise)
        return race, ExactMatch(race)
    if method.drafter == "none" and t > 0:
        drawn = choices.InverseCdfSampler(t, noise, choices.TOKEN)
        return drawn, ExactMatch(drawn)
    if method.drafts_most_probable:
        return choices.GreedySampler(), SampledPath(t, noise, method.rule)
    if t > 0:
        chain = method.tree is None
        drafted = (
            choices.InverseCdfSampler(t, noise, choices.DRAFT)
            if chain
            else choices.GumbelWithoutReplacement(t, noise)
        )
        return drafted, SpeculativeSampling(t, noise, method.rule)
    if method.rule is None or method.lossless:
        return choices.GreedySampler(), ExactMatch(choices.GreedySampler())
    return choices.GreedySampler(), RuleVerifier(method.rule)


def run_metadata(method: Method) -> Json:
    """Return a record's facts on a run: its name, settings, and the shape of its tree."""
    facts: Json = {"method": method.name, "lossless": method.lossless, **method.to_mapping()}
    shape = method.topology
    if method.tree is not None and shape is not None:
        facts["shape"] = {"name": method.tree.shape, "nodes": len(shape), "depth": shape.depth}
        if isinstance(shape, Topology):
            facts["shape"]["parents"] = list(shape.parents)
    return facts


def compare_with_baseline(tokens: Sequence[int], baseline: Sequence[int]) -> Row:
    """Return the agreement of an answer with the baseline's; lengths may differ."""
    same = [a == b for a, b in zip(tokens, baseline, strict=False)]
    return {
        "agreement": sum(same) / max(len(tokens), len(baseline)),
        "common_prefix": same.index(False) if False in same else len(same),
    }


@torch.inference_mode()
def score_answer(read: Prefill, answer: Sequence[int]) -> tuple[Tensor, Tensor | None]:
    """Return the target's logits (n, V) from which the n tokens of an answer were chosen.

    And the hidden states (1, m, layers, d) of the text without its last token, None without layers.
    """
    logits, hidden = read.logits, read.cache.hidden
    if len(answer) > 1:
        cache = read.cache.copy(read.cache.layers)
        ids = torch.tensor([answer[:-1]], device=logits.device)
        logits = torch.cat([logits, cache.append(ids)[0]])
        if hidden is not None and cache.hidden is not None:
            hidden = torch.cat([hidden, cache.hidden], 1)
    return logits, hidden


def draft_logits(
    pair: DecodingSession, prompt: Sequence[int], answer: Sequence[int], hidden: Tensor | None
) -> Tensor:
    """Return the drafter's logits (n, V) at the n tokens of an answer; a head reads `hidden`."""
    assert pair.drafter is not None
    text = torch.tensor([[*prompt, *answer[:-1]]], device=pair.target.device)
    return read_drafter(pair.drafter, text, hidden, len(answer))[0][0]


def log_probability_given_up(logits: Tensor, answer: Sequence[int]) -> Tensor:
    """Return log(p0 / p(token)), (n,) float64, of the n tokens of an answer with logits (n, V)."""
    chosen = logits.gather(1, torch.tensor(answer, device=logits.device)[:, None])[:, 0]
    return logits.amax(1).double() - chosen.double()


def drafted_columns(logits: Tensor, drafts: Tensor) -> dict[str, list[float]]:
    """Return the greedy draft at every step and the target's view of it, of logits (n, V) of both.

    Of equal logits the drafter takes the first, as `choices.Greedy` does.
    """
    token, statistics = argmax(drafts), logit_statistics(logits, 2)
    top, surprisal = statistics["top_logits"], statistics["top_surprisal"]
    z1, z2 = pad(top, (0, 1), value=-torch.inf)[:, :2].unbind(1)  # a single token has no second
    below = logits.gather(1, token[:, None])[:, 0].double() - z1 - surprisal
    columns = {
        "draft_token_id": token,
        "draft_rank": ranks_of(token, logits),
        "draft_log_prob": below,
        "z1": z1,
        "z2": z2,
        "top_surprisal": surprisal,
    }
    return {name: values.tolist() for name, values in columns.items()}


def entropy_columns(
    logits: Tensor, drafts: Tensor, temperature: float
) -> dict[str, tuple[float, ...]]:
    """Return KL and H[R] at every step, of logits (n, V) of both."""
    log_p, log_q = (
        choices.tempered(of, temperature).log_softmax(1).cpu().numpy() for of in (logits, drafts)
    )
    found = [index_entropies(p, q) for p, q in zip(log_p, log_q, strict=True)]
    return dict(
        zip(("kl", "greedy_entropy", "races_entropy"), zip(*found, strict=True), strict=True)
    )
