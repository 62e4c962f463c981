"""Small models, plain passes of them, and every way to choose, draft and verify."""

import math
from functools import cache
from types import SimpleNamespace

import torch

from analysis.rules import Additive, Mars
from analysis.trees.topology import DynamicTree, Topology
from pipeline.decoding.loop import decode
from pipeline.decoding.sampling import (
    DRAFT,
    GreedySampler,
    GumbelSampler,
    GumbelWithoutReplacement,
    InverseCdfSampler,
)
from pipeline.decoding.verification import (
    ExactMatch,
    RuleVerifier,
    SampledPath,
    SpeculativeSampling,
)

V, LIMIT = 24, 24
CPU = torch.device("cpu")
PROMPTS = [[5, 9, 5, 9, 5], list(range(3, 20)), [7]]
UNEVEN = Topology((-1, -1, -1, 0, 0, 1, 3, 5, 5, 7))
WAYS = {  # what chooses drafted tokens, what verifies, the shape; from the noise
    "greedy": lambda n: (GreedySampler(), ExactMatch(GreedySampler()), None),
    "MARS": lambda n: (GreedySampler(), RuleVerifier(Mars(0.5)), None),
    "additive": lambda n: (GreedySampler(), RuleVerifier(Additive(0.3)), None),
    "sampling": lambda n: (InverseCdfSampler(0.8, n, DRAFT), SpeculativeSampling(0.8, n), None),
    "MARS, sampling": lambda n: (
        *(InverseCdfSampler(0.8, n, DRAFT), SpeculativeSampling(0.8, n, Mars(0.5)), None),
    ),
    "MARS on a tree": lambda n: (GreedySampler(), RuleVerifier(Mars(0.5)), UNEVEN),
    "MARS on a grown tree": lambda n: (
        GreedySampler(),
        RuleVerifier(Mars(0.5)),
        DynamicTree(3, 7, 4),
    ),
    "MARS, sampling on a grown tree": lambda n: (
        *(GreedySampler(), SampledPath(0.8, n, Mars(0.5)), DynamicTree(3, 7, 4)),
    ),
    "argmax drafts": lambda n: (GreedySampler(), SampledPath(0.8, n), None),
    "races": lambda n: (GumbelSampler(0.8, n), ExactMatch(GumbelSampler(0.8, n)), None),
    "tree": lambda n: (GreedySampler(), ExactMatch(GreedySampler()), UNEVEN),
    "sampled tree": lambda n: (
        GumbelWithoutReplacement(0.8, n),
        SpeculativeSampling(0.8, n),
        UNEVEN,
    ),
    "raced grown tree": lambda n: (
        GumbelSampler(0.8, n),
        ExactMatch(GumbelSampler(0.8, n)),
        DynamicTree(3, 7, 4),
    ),
}


class Markov:
    """A model whose logits (size, size) depend on the last token: only the loop takes time."""

    label, device, dtype, context = "markov", CPU, torch.float64, math.inf
    takes_masks = False

    def __init__(self, table, eos=()):
        self.table, self.module, self.eos, self.vocab_size = table, self, eos, len(table)

    def new_cache(self, _):
        return SimpleNamespace(layers=[])

    def check_drafts(self, *_):
        """It forgets nothing."""

    def check_tokens(self, *_):
        """All tokens are its own."""

    def forward(self, ids, *_, keep=0, **__):
        return self.table[ids[:, -keep:]], None


def history(indicators, draft_length):
    """The calls of strict greedy whose tests have given outcomes: begin, drafted, accepted.

    A call ends at the first failure, which it corrects; bonus and last positions are never tested.
    """
    calls, position = [], 0
    while position < len(indicators):
        drafted = min(draft_length, len(indicators) - position - 1)
        tests = indicators[position : position + drafted]
        accepted = tests.index(False) if False in tests else len(tests)
        calls.append((position, drafted, accepted))
        position += accepted + 1
    return calls


def logits(model, text):
    """All logits (n, V) of a text, in one pass without a cache."""
    return _logits(model.module, text)


@torch.inference_mode()
def _logits(module, text):
    return module(input_ids=torch.tensor([text]), use_cache=False).logits[0]


def plain_greedy(model, prompt):
    """The answer of LIMIT tokens by one pass over the whole text for every token."""
    return list(_plain_greedy(model.module, tuple(prompt)))


@cache  # many tests compare with the same few answers, and no test changes a model
def _plain_greedy(module, prompt):
    text = list(prompt)
    for _ in range(LIMIT):
        text.append(int(_logits(module, text)[-1].argmax()))
    return text[len(prompt) :]


def greedy(target, drafter, prompt, gamma):
    """The answer of LIMIT tokens under strict greedy verification of gamma drafted tokens."""
    return decode(target, drafter, ExactMatch(GreedySampler()), prompt, gamma, LIMIT)
