"""The checks of `benchmarks.gpu`: each returns what it found, or fails as an AssertionError.

- decoding a batch and decoding each prompt alone emit the same tokens, in float32 and bfloat16, and
  padding gives no NaN;
- recorded and eager passes emit the same tokens, with logits that agree;
- texts that stage drafts reads together have the logits of each alone, of a head as well;
- the head's product in bfloat16, the statistics and the top K agree with the CPU's;
- the decoding loop with a chain and with a tree emits the tokens of the target alone, and sampled
  drafts are verified at all nodes at once as they are one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import torch

from analysis.trees.topology import sequence, symmetric
from benchmarks.gpu_models import (
    REDUCED,
    STEPS,
    Prompts,
    decoded,
    passes,
    random_prompts,
    random_qwen3,
)
from pipeline.decoding import verification
from pipeline.decoding.loop import decode
from pipeline.decoding.proposers import ModelProposer, Proposer
from pipeline.decoding.sampling import GreedySampler, Noise
from pipeline.decoding.tree_drafting import Draft
from pipeline.decoding.verification import ExactMatch, SpeculativeSampling
from pipeline.drafters.draft_model import DraftModel
from pipeline.drafters.eagle3_head import Eagle3Head
from pipeline.drafters.pairs import read_pair, read_pairs
from pipeline.models.eagle3.drafter import Eagle3Drafter, Eagle3Module
from pipeline.models.language_model import LMHead, linear_of
from pipeline.models.loading import LanguageModel
from pipeline.models.logit_statistics import StatisticsColumns, logit_statistics

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.15}  # of a logit, absolute; logits are about 1 to 10
DIFFERING = {"float32": 0.0, "bfloat16": 0.02}  # share of steps: padding may change a close argmax


def small(device: torch.device, dtype: str) -> tuple[LanguageModel, Prompts]:
    """Return a random model and prompts of very different lengths."""
    torch.manual_seed(0)
    model = random_qwen3(REDUCED, dtype, device, "small")
    return model, random_prompts(16, 300, model.vocab_size)


def same_tokens(device: torch.device, dtype: str) -> str:
    """Check that a batch and each prompt alone emit the same tokens, up to close argmaxes."""
    model, prompts = small(device, dtype)
    together = decoded(model, prompts)
    alone = [decoded(model, {name: ids}) for name, ids in prompts.items()]
    wanted = {name: torch.cat([single[name] for single in alone]) for name in together}
    assert together["entropy"].isfinite().all(), "an entropy is not finite"
    return f"first differences from texts alone: {compared(together, wanted, dtype)}"


def compared(found: StatisticsColumns, wanted: StatisticsColumns, dtype: str) -> str:
    """Check that two runs emit the same tokens with the same log-sum-exps; return how nearly."""
    same = (found["token_id"] == wanted["token_id"]).cumprod(1).bool()
    before = torch.cat([torch.ones_like(same[:, :1]), same[:, :-1]], 1)  # up to a difference
    share = 1 - int(same.sum()) / int(before.sum())
    apart = (found["logsumexp"] - wanted["logsumexp"]).abs()[before].max().item()
    assert share <= DIFFERING[dtype], f"texts differ first at {share:.2%} of the steps"
    assert apart <= TOLERANCE[dtype], f"log-sum-exps are {apart:.3g} apart"
    return f"{share:.2%} of the steps; log-sum-exps {apart:.2g} apart"


def recorded_as_eager(device: torch.device, dtype: str) -> str:
    """Check that recorded passes emit the tokens of eager ones: in batches, and in the loop."""
    model, prompts = small(device, dtype)
    found = []
    answers = []
    for recorded in (True, False):
        with passes(recorded=recorded):
            found.append(decoded(model, prompts))
            answers.append(looped(model, prompts))
    if dtype == "float32":
        assert answers[0] == answers[1], "the loop emits other tokens"
    return f"first differences from eager passes: {compared(found[0], found[1], dtype)}"


def random_head(target: LanguageModel) -> Eagle3Head:
    """Return a head with random weights, and the output layer of its target."""
    with target.device:
        module = Eagle3Module(REDUCED, layers=2, fc_norm=False).eval()
    rows = target.module.get_output_embeddings()
    return Eagle3Head(
        Eagle3Drafter(target, module, rows, (1, 2), "small head", None, target.vocab_size)
    )


@torch.inference_mode()
def texts_together(device: torch.device) -> str:
    """Check that texts read together, as in stage drafts, have the logits of each alone."""
    target, prompts = small(device, "float32")
    texts = list(prompts.values())
    width = max(map(len, texts))
    padding = [width - len(text) for text in texts]
    padded = [[0] * before + text for before, text in zip(padding, texts, strict=True)]
    ids = torch.tensor(padded, device=device)
    before = torch.tensor(padding, device=device)
    worst = 0.0
    for drafter in (DraftModel(target), random_head(target)):
        logits, drafts, _ = read_pairs(target, drafter, ids, 8, 2, before)
        for row, text in enumerate(texts):
            alone = read_pair(target, drafter, torch.tensor([text], device=device), 8, 2)
            wanted = [alone[0], *alone[1]]
            found = [logits[row], *(draft[row] for draft in drafts)]
            gaps = [_distance(*pair) for pair in zip(found, wanted, strict=True)]
            worst = max(worst, *gaps)
    assert worst <= TOLERANCE["float32"], f"logits are {worst:.3g} apart"
    return f"{len(texts)} texts, by a language model and by a head, logits {worst:.2g} apart"


def head_and_statistics(device: torch.device) -> str:
    """Check the product in bfloat16 and the statistics against those of the CPU."""
    torch.manual_seed(1)
    hidden = torch.randn(8, 256).bfloat16()
    weight = torch.randn(4096, 256).bfloat16()
    head = LMHead(linear_of(weight.to(device), None), torch.float32)
    on_device = head(hidden.to(device)).cpu()
    product = (on_device - hidden.double() @ weight.double().T).abs().max().item()
    assert product <= 1e-3, f"logits are {product:.3g} apart"
    logits = torch.randn((8, 4096), generator=torch.Generator().manual_seed(1))
    logits[0, :200] = logits[0].max()  # ties
    logits[1, 1:] = -torch.inf
    on_host = logit_statistics(logits, 64, 0.5)
    moved = logit_statistics(logits.to(device), 64, 0.5)
    assert (on_host["top_ids"] == moved["top_ids"].cpu()).all(), "other tokens are stored"
    gaps = (_distance(on_host[name], moved[name].cpu()) for name in on_host)
    worst = max(gaps)
    assert worst <= 1e-10, f"statistics are {worst:.3g} apart"
    return f"logits {product:.2g} apart, statistics {worst:.2g}"


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    apart = torch.where(one == other, 0, (one - other).abs())  # of equal infinities 0
    return float(apart.max().item())


def looped(model: LanguageModel, prompts: Prompts) -> list[list[list[int]]]:
    """Return the answers of the loop alone, with a chain and with a tree."""
    drafters = [
        Proposer(model.device),
        ModelProposer(model, GreedySampler()),
        ModelProposer(model, GreedySampler(), symmetric(2, 3).by_level()),
    ]
    return [
        [
            decode(model, drafter, ExactMatch(GreedySampler()), ids, 3, STEPS).tokens
            for ids in prompts.values()
        ]
        for drafter in drafters
    ]


def loop_emits_the_target(device: torch.device) -> str:
    """Check that drafting, as a chain and as a tree, does not change the emitted tokens."""
    model, prompts = small(device, "float32")
    plain, *drafted = looped(model, prompts)
    assert all(answers == plain for answers in drafted), "drafts change the answers"
    return f"{sum(map(len, plain))} tokens, the same with a chain and with a tree"


def verified_at_all_nodes(device: torch.device) -> str:
    """Check speculative sampling at all nodes on the device against one after the other."""
    generator = torch.Generator().manual_seed(2)
    accepted = 0
    for seed in range(100):
        tree = sequence(3)
        z = 2 * torch.randn((4, 500), generator=generator)
        q = torch.softmax((z[:3] + torch.randn((3, 500), generator=generator)).double(), 1)
        tokens = torch.multinomial(q, 1, generator=generator)[:, 0]
        noise = Noise(seed, "p", 8, device, 3)
        moved = Draft(tokens.to(device), tree, q.to(device))
        with patch.object(verification, "ALL_NODES_ON_CPU", new=True):
            found = SpeculativeSampling(1.0, noise).verify(z.to(device), moved, 0)
        wanted = SpeculativeSampling(1.0, noise).verify(z, Draft(tokens, tree, q), 0)
        assert found == wanted, f"{found} for {wanted}"
        accepted += len(found[0])
    return f"100 drafts of 3, {accepted} tokens accepted"


CHECKS: dict[str, Callable[[torch.device], str]] = {
    "tokens, float32": partial(same_tokens, dtype="float32"),
    "tokens, bfloat16": partial(same_tokens, dtype="bfloat16"),
    "recorded passes, float32": partial(recorded_as_eager, dtype="float32"),
    "recorded passes, bfloat16": partial(recorded_as_eager, dtype="bfloat16"),
    "texts read together": texts_together,
    "head and statistics": head_and_statistics,
    "decoding": loop_emits_the_target,
    "verification": verified_at_all_nodes,
}
