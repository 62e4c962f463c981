"""Trains a head on its target's hidden states; see `pipeline.drafter_training.__main__`.

Training-time test, after EAGLE-3 (arXiv 2503.01840): beyond depth 1 the head reads its own output
for the tokens before, as it will when it drafts. The loss of a depth is the cross-entropy to the
target's distribution, and the distance of the normed output to the target's last hidden state.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.drafter_training.features import Example
from pipeline.errors import PipelineError
from pipeline.models.heads.feature_head import Depths, FeatureHead

Batch = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Vocabulary:
    """What drafts may consist of, and the target's embedding and projection."""

    embedding: Tensor  # (V, d)
    projection: Tensor  # (V, d)
    drafted: Tensor  # (n,) ids, increasing

    @cached_property
    def others(self) -> Tensor:
        """The ids that are not drafted, increasing."""
        rest = torch.ones(len(self.embedding), dtype=torch.bool)
        rest[self.drafted] = False
        return rest.nonzero()[:, 0]


def drafted_tokens(examples: Sequence[Example], size: int, always: Sequence[int]) -> Tensor:
    """Return the ids of the `size` most frequent tokens, `always` among them, in their order."""
    found = torch.cat([one.tokens for one in examples])
    counts = torch.bincount(found, minlength=1 + max(always, default=0))
    counts[list(always)] = counts.max() + 1
    return counts.argsort(descending=True, stable=True)[:size].sort().values


def initial(head: FeatureHead, norm: Tensor) -> None:
    """Let `head` begin as the target's own last layer would go on: its features, its norm.

    Args:
        head: the last of its layers is after the target's final norm.
        norm: (d,) weight of that norm.
    """
    d = len(norm)
    with torch.no_grad():
        head.fc.weight.normal_(std=0.02 / head.fc.in_features**0.5)
        head.fc.weight[:, -d:] += torch.diag(1 / norm)
        head.norm.weight.copy_(norm)
        for small in (head.midlayer.self_attn.o_proj, head.midlayer.mlp.down_proj):
            small.weight.mul_(0.1)


def train(
    head: FeatureHead,
    vocabulary: Vocabulary,
    examples: Sequence[Example],
    held_out: Sequence[Example],
    recipe: Any,
    directory: Path,
) -> FeatureHead:
    """Train `head` to the last step of `recipe` and return it.

    Args:
        head: as `initial` left it.
        vocabulary: of the target and of drafts.
        examples: to train on.
        held_out: conversations, of which every fourth is reported on at each checkpoint.
        recipe: tokens (of a batch), epochs, deep_epochs, depth, learning_rate, others,
            checkpoint_seconds, seed; see conf/drafter_training.yaml.
        directory: of the checkpoint and the log.

    Raises:
        PipelineError: the checkpoint is of another recipe or of other conversations.
    """
    plan = _plan([len(one.tokens) for one in examples], recipe)
    optimizers = _optimizers(head, recipe.learning_rate)
    directory.mkdir(parents=True, exist_ok=True)
    checkpoint = directory / "checkpoint.pt"
    of = {name: value for name, value in vars(recipe).items() if name != "checkpoint_seconds"}
    of |= {"conversations": len(examples)}
    done = _load(checkpoint, of, head, optimizers)
    saved, smoothed = time.monotonic(), 0.0
    for step in range(done, len(plan)):
        members, depth = plan[step]
        some = [examples[i] for i in members]
        loss = _loss(head, vocabulary, some, depth, step, recipe)
        loss.backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = recipe.learning_rate * _rate(step, len(plan), recipe)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        smoothed = loss.item() if step == done else 0.98 * smoothed + 0.02 * loss.item()
        last = step + 1 == len(plan)
        if last or time.monotonic() - saved > recipe.checkpoint_seconds:
            _save(checkpoint, of, head, optimizers, step + 1)
            agreed = agreement(head, vocabulary, held_out[::4], recipe.depth)
            _log(directory / "log.csv", step + 1, smoothed, agreed)
            shares = " ".join(f"{share:.3f}" for share in agreed)
            print(
                f"step {step + 1}/{len(plan)}: loss {smoothed:.3f}, agreement {shares}", flush=True
            )
            saved = time.monotonic()
    return head.eval()


@torch.no_grad()
def agreement(
    head: FeatureHead, vocabulary: Vocabulary, examples: Sequence[Example], depth: int
) -> list[float]:
    """Return, by depth, the share of answer tokens at which drafter and target have one argmax."""
    equal, count = np.zeros(depth), np.zeros(depth)
    rows = vocabulary.projection[vocabulary.drafted]
    for begin in range(0, len(examples), 8):
        some = examples[begin : begin + 8]
        ids, hidden, following, _ = _batch(some)
        within = _answers(some, ids.shape[1])
        p = (following @ vocabulary.projection.T).argmax(-1)
        embedded = vocabulary.embedding[ids]
        for d, features in enumerate(_outputs(head, embedded, hidden, depth)):
            q = vocabulary.drafted[(head.norm(features) @ rows.T).argmax(-1)]
            there = within.clone()
            there[:, :d] = False
            equal[d] += int((p == q)[there].sum())
            count[d] += int(there.sum())
    return (equal / count).tolist()


def _loss(
    head: FeatureHead,
    vocabulary: Vocabulary,
    examples: Sequence[Example],
    depth: int,
    step: int,
    recipe: Any,
) -> Tensor:
    """Return cross-entropy to the target's distribution and distance to its hidden states.

    Depth 1 learns from all tokens, the others from those of answers. Of the tokens that can't be
    drafted some are drawn, and stand for all of them.
    """
    ids, hidden, following, real = _batch(examples)
    others = vocabulary.others
    generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
    some = others[torch.randint(len(others), (recipe.others,), generator=generator)]
    rows = vocabulary.projection[torch.cat([vocabulary.drafted, some])]
    stand_for = torch.zeros(len(rows))
    stand_for[len(vocabulary.drafted) :] = np.log(len(others) / recipe.others)
    with torch.no_grad():
        p = (following[real] @ rows.T + stand_for).softmax(-1)
    scale = following[real].std()
    in_answer = _answers(examples, ids.shape[1])
    total = torch.zeros(())
    with torch.autocast("cpu", torch.bfloat16, enabled=recipe.bfloat16):
        outputs = _outputs(head, vocabulary.embedding[ids], hidden, depth)
    for d, features in enumerate(outputs):
        learned = real if d == 0 else real & in_answer
        made = head.norm(features.float())[learned]
        with torch.autocast("cpu", torch.bfloat16, enabled=recipe.bfloat16):
            logits = made @ rows.T
        log_q = (logits.float() + stand_for).log_softmax(-1)
        soft = -((p if d == 0 else p[learned[real]]) * log_q).sum(-1)
        near = functional.smooth_l1_loss(made / scale, following[learned] / scale)
        total = total + 0.8**d * (soft.mean() + recipe.feature_weight * near)
    return total


def _outputs(head: FeatureHead, embedded: Tensor, hidden: Tensor, depth: int) -> list[Tensor]:
    """Return the outputs of all depths; what is padded comes last and is seen by nothing real."""
    at = torch.arange(1, embedded.shape[1] + 1).expand(embedded.shape[:2])
    return Depths(head, depth).read(embedded, hidden, at, at > 0)


def _batch(examples: Sequence[Example]) -> Batch:
    """Return ids (B, n) of tokens 1 to n, the hidden states before and after them, what is real."""
    width = max(len(one.tokens) for one in examples) - 1
    layers, d = examples[0].hidden.shape[1:]
    ids = torch.zeros(len(examples), width, dtype=torch.long)
    hidden = torch.zeros(len(examples), width, layers, d)
    following = torch.zeros(len(examples), width, d)
    real = torch.zeros(len(examples), width, dtype=torch.bool)
    for row, one in enumerate(examples):
        n = len(one.tokens) - 1
        ids[row, :n] = one.tokens[1:]
        hidden[row, :n] = one.hidden[:-1].float()
        following[row, :n] = one.hidden[1:, -1].float()
        real[row, 1:n] = True  # the first token's hidden state is an attention sink
    return ids, hidden, following, real


def _answers(examples: Sequence[Example], width: int) -> Tensor:
    """Return (B, width) whether what follows a token is one of the answer."""
    within = torch.zeros(len(examples), width, dtype=torch.bool)
    for row, one in enumerate(examples):
        within[row, max(one.answer_at - 2, 0) : len(one.tokens) - 2] = True
    return within


def _plan(lengths: Sequence[int], recipe: Any) -> list[tuple[list[int], int]]:
    """Return the conversations of every step and the depth it trains; alike long ones together."""
    plan = []
    epochs = [1] * recipe.epochs + [recipe.depth] * recipe.deep_epochs
    for epoch, depth in enumerate(epochs):
        rng = np.random.default_rng([recipe.seed, epoch])
        order = sorted(range(len(lengths)), key=lambda i: lengths[i] + rng.uniform(0, 20))
        steps: list[list[int]] = [[]]
        for i in order:
            if steps[-1] and (len(steps[-1]) + 1) * lengths[i] > recipe.tokens:
                steps.append([])
            steps[-1].append(i)
        plan += [(steps[at], depth) for at in rng.permutation(len(steps))]
    return plan


def _rate(step: int, steps: int, recipe: Any) -> float:
    """Return the share of the peak learning rate: warm-up, then a cosine to a hundredth."""
    if step < recipe.warmup_steps:
        return (step + 1) / float(recipe.warmup_steps)
    along = (step - recipe.warmup_steps) / max(1, steps - recipe.warmup_steps)
    return float(0.01 + 0.99 * (1 + np.cos(np.pi * along)) / 2)


def _optimizers(head: nn.Module, learning_rate: float) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices, whose steps are as long as AdamW's, and AdamW for the norms."""
    matrices = [one for one in head.parameters() if one.ndim == 2]
    norms = [one for one in head.parameters() if one.ndim != 2]
    return [
        torch.optim.Muon(
            matrices, learning_rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(norms, learning_rate, betas=(0.9, 0.95)),
    ]


def _load(path: Path, of: Any, head: nn.Module, optimizers: list[torch.optim.Optimizer]) -> int:
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    if state.get("of", of) != of:
        changed = sorted(n for n in of.keys() | state["of"] if of.get(n) != state["of"].get(n))
        raise PipelineError(
            f"{path} is of a run with other {', '.join(changed)}: finish that one, or remove it"
        )
    head.load_state_dict(state["head"])
    for optimizer, kept in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(kept)
    return int(state["step"])


def _save(
    path: Path, of: Any, head: nn.Module, optimizers: list[torch.optim.Optimizer], step: int
) -> None:
    beside = path.with_suffix(".tmp")
    states = [optimizer.state_dict() for optimizer in optimizers]
    torch.save({"of": of, "head": head.state_dict(), "optimizers": states, "step": step}, beside)
    beside.replace(path)


def _log(path: Path, step: int, loss: float, agreed: Sequence[float]) -> None:
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if new:
            names = [f"agreement_depth_{d}" for d in range(1, len(agreed) + 1)]
            writer.writerow(["step", "loss", *names])
        writer.writerow([step, f"{loss:.4f}", *(f"{share:.4f}" for share in agreed)])
