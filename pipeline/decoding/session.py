"""A decoding session: a target and its drafters, and decoding of a prompt with each method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch

from analysis.trees.topology import Topology
from pipeline.core.errors import PipelineError
from pipeline.core.stage import Json, Task
from pipeline.core.workers import out_of_memory
from pipeline.decoding.loop import Answer, Prefill, check_prompt, decode, prefill
from pipeline.decoding.proposers import Proposer, extra_columns
from pipeline.decoding.sampling import (
    DRAFT,
    TOKEN,
    GreedySampler,
    GumbelSampler,
    GumbelWithoutReplacement,
    InverseCdfSampler,
    Noise,
    Sampler,
)
from pipeline.decoding.verification import (
    ExactMatch,
    RuleVerifier,
    SampledPath,
    SpeculativeSampling,
    Verifier,
)
from pipeline.drafters import Drafter, NeuralDrafter, TextDrafter, kind_of
from pipeline.drafters.pairs import load_pair
from pipeline.models.language_model import LanguageModel
from pipeline.models.loading import load_model
from pipeline.models.tokens import common_rows
from pipeline.settings.methods import RACES, Method, with_baselines

T = TypeVar("T")
WARM_UP = 8  # tokens decoded before anything is timed


@dataclass(frozen=True)
class Prompt:
    """A prompt to decode; its sampling noise depends on its id."""

    prompt_id: str
    token_ids: list[int]
    source: str = ""


@dataclass(frozen=True)
class DecodingSession:
    """A target with its drafters, the methods to run, and their common settings."""

    target: LanguageModel
    drafters: Mapping[str, Drafter]  # by the name that methods use
    runs: list[Method]  # the methods to run, baselines first
    steps: int  # the most tokens of an answer
    seed: int

    @property
    def neural(self) -> NeuralDrafter | None:
        """The drafter of the key `drafter`, which also scores answers; None without one."""
        drafter = self.drafters.get(NeuralDrafter.name)
        assert drafter is None or isinstance(drafter, NeuralDrafter)
        return drafter


def load_session(
    task: Task,
    methods: Sequence[Method],
    tokenizer: Any,
    steps: int,
    prompts: Sequence[Sequence[int]],
) -> DecodingSession:
    """Load a task's models, and cut their logits to the vocabulary that they share.

    `prompts` are the tokens of all prompts that will be decoded; a text drafter may use them.
    """
    specs = task.runtime.models
    drafters = dict[str, Drafter]()
    with_trees = any(method.tree is not None for method in methods)
    if len(specs) == 1:
        target = load_model(*specs)
        rows = target.vocab_size
    else:
        target, drafter = load_pair(*specs)
        if with_trees and isinstance(drafter.model, LanguageModel):
            drafter.model.check_trees()  # a head can always read trees
        tokens = 1 + max(tokenizer.get_vocab().values())
        rows = common_rows(target.vocab_size, drafter.model.vocab_size, tokens, task.runtime.pair)
        model = replace(drafter.model, vocab_size=rows, label="the drafter")
        drafters[drafter.name] = replace(drafter, model=model)
    for name in {method.drafter for method in methods} - drafters.keys():
        kind = kind_of(name)
        assert issubclass(kind, TextDrafter)
        drafters[name] = kind.load(task.settings, prompts)
    if with_trees:
        target.check_trees()
    # errors are stored in artifacts, and the configured label may change later
    target = replace(target, vocab_size=rows, label="the target")
    return DecodingSession(target, drafters, with_baselines(methods), steps, task.settings["seed"])


def result_or_reason(work: Callable[[], T], device: torch.device) -> tuple[T | None, str | None]:
    """Return (result, None), or (None, reason) if `work` fails because of its prompt or memory."""
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


def _check_drafter_fits(session: DecodingSession, prompt: Prompt, steps: int) -> None:
    """Check that prompt and answer fit the drafter's context; `prefill` checks the target's."""
    neural = session.neural
    drafts = any(run.drafter == NeuralDrafter.name for run in session.runs)
    if drafts and neural is not None and isinstance(neural.model, LanguageModel):
        check_prompt(neural.model, prompt.token_ids, steps)


def read_prompt(session: DecodingSession, prompt: Prompt, steps: int) -> Prefill:
    """Run the target over a prompt, once for all methods; answers have at most `steps` tokens.

    Raises:
        PipelineError: prompt and answer do not fit into the context of target or drafter.
    """
    _check_drafter_fits(session, prompt, steps)
    layers = () if session.neural is None else session.neural.layers
    drafted = max(extra_columns(method.topology) for method in session.runs)
    return prefill(session.target, prompt.token_ids, steps, layers, drafted)


def decode_timed(
    session: DecodingSession, method: Method, prompt: Prompt, read: Prefill
) -> tuple[Answer, int | None]:
    """Decode a prompt with a method; return the answer and the peak CUDA memory in bytes."""
    device = session.target.device
    length = method.draft_length
    noise = Noise(session.seed, prompt.prompt_id, read.limit, device, draft_length=length)
    sampler, verifier = scheme_of(method, noise)
    proposer = proposer_of(session, method, sampler)
    if device.type != "cuda":
        answer = decode(session.target, proposer, verifier, read, length, read.limit)
        return answer, None
    torch.cuda.reset_peak_memory_stats(device)
    answer = decode(session.target, proposer, verifier, read, length, read.limit)
    return answer, torch.cuda.max_memory_allocated(device)


def warm_up(session: DecodingSession, prompts: Sequence[Prompt]) -> None:
    """Decode a few tokens with every method, so that no slow first call is timed."""

    def warm(prompt: Prompt) -> bool:
        read = read_prompt(session, prompt, WARM_UP)
        for method in session.runs:
            decode_timed(session, method, prompt, read)
        return True

    reasons = []
    for prompt in prompts:
        done, reason = result_or_reason(partial(warm, prompt), session.target.device)
        if done:
            return
        reasons.append(reason)
    raise PipelineError(f"no prompt can be decoded: {reasons[0]}")


def proposer_of(session: DecodingSession, method: Method, sampler: Sampler) -> Proposer:
    """Return the proposer of `method`; `sampler` chooses its tokens."""
    device = session.target.device
    if method.drafter == "none":
        return Proposer(device)
    return session.drafters[method.drafter].proposer(sampler, method.topology, device)


def scheme_of(method: Method, noise: Noise) -> tuple[Sampler, Verifier]:
    """Return the sampler of drafted tokens and the verifier for `method`."""
    t = method.temperature
    if method.sampling == RACES:
        race = GumbelSampler(t, noise)
        return race, ExactMatch(race)
    if method.drafter == "none" and t > 0:
        drawn = InverseCdfSampler(t, noise, TOKEN)
        return drawn, ExactMatch(drawn)
    if method.drafts_most_probable:
        return GreedySampler(), SampledPath(t, noise, method.rule)
    if t > 0:
        drafted: Sampler = GumbelWithoutReplacement(t, noise)
        if method.tree is None:
            drafted = InverseCdfSampler(t, noise, DRAFT)
        return drafted, SpeculativeSampling(t, noise, method.rule)
    if method.rule is None or method.lossless:
        return GreedySampler(), ExactMatch(GreedySampler())
    return GreedySampler(), RuleVerifier(method.rule)


def run_metadata(method: Method) -> Json:
    """Return what the record says of a run: its name, settings, and the shape of its tree."""
    facts: Json = {"method": method.name, "lossless": method.lossless, **method.to_mapping()}
    shape = method.topology
    if method.tree is not None and shape is not None:
        facts["shape"] = {"name": method.tree.shape, "nodes": len(shape), "depth": shape.depth}
        if isinstance(shape, Topology):
            facts["shape"]["parents"] = list(shape.parents)
    return facts
