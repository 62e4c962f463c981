"""A head on its target: cached, by depth, from files; and decoding with it loses nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pipeline.decoding.choices import Greedy
from pipeline.decoding.drafters import HeadDrafter
from pipeline.decoding.loop import decode
from pipeline.decoding.verify import Match
from pipeline.models.heads.feature_head import GivenText
from pipeline.models.heads.hidden_drafter import HiddenDrafter
from pipeline.models.heads.load import load_head
from pipeline.models.language_model import LanguageModel
from pipeline.models.load import wrap
from pipeline.models.passes import Texts
from tests.pipeline import heads
from tests.pipeline.decoding.pair import LIMIT, PROMPTS, V, plain_greedy
from tests.pipeline.heads import states_of
from tests.pipeline.tiny import random_model

DRAFTED = torch.tensor([0, 3, 5, 7, 8, 9, 12, 20])


@pytest.fixture(scope="module")
def target() -> LanguageModel:
    return random_model(V)


@pytest.fixture(scope="module")
def model(target: LanguageModel) -> HiddenDrafter:
    return heads.random_head(target)


@torch.inference_mode()
def drafted_plainly(model: HiddenDrafter, text: list[int], count: int) -> list[int]:
    """Greedy drafts after a text, each by a pass over all entries without a cache."""
    fused = model.head.fuse(states_of(model.target, text[:-1], model.layers)[None])
    tokens = list(text)
    for _ in range(count):
        entries = Texts(model, len(tokens))
        tokens.append(int(entries.extend(torch.tensor([tokens[1:]]), None, fused, 1).argmax()))
        assert entries.hidden is not None
        fused = torch.cat([fused, entries.hidden[:, -1:]], 1)
    return tokens[len(text) :]


def test_what_is_drafted_after_roll_backs_is_drafted_without_a_cache(model: HiddenDrafter) -> None:
    target = model.target
    text = plain_greedy(target, PROMPTS[1])
    tokens = PROMPTS[1] + text
    drafter = HeadDrafter(model, Greedy())
    n = len(PROMPTS[1])
    begun = states_of(target, PROMPTS[1], model.layers)[None]
    drafter.begin(torch.tensor(PROMPTS[1])[None], 60, begun)
    known = n + 1
    for accepted in (0, 2, 1, 0, 3):
        wanted = drafted_plainly(model, tokens[:known], 4)
        assert drafter.propose(tokens[:known], 4, known - n).tokens.tolist() == wanted
        new = states_of(target, tokens[: known + accepted], model.layers)
        drafter.accept(known, range(accepted), new[None, known - 1 :])
        known += accepted + 1
    # a call that drafts nothing leaves its hidden states for the next
    assert len(drafter.propose(tokens[:known], 0, known - n).tokens) == 0
    new = states_of(target, tokens[:known], model.layers)
    drafter.accept(known, (), new[None, known - 1 :])
    known += 1
    wanted = drafted_plainly(model, tokens[:known], 2)
    assert drafter.propose(tokens[:known], 2, known - n).tokens.tolist() == wanted


@torch.inference_mode()
@pytest.mark.parametrize("blocks", [[5, 1, 1, 13], [1] * 20, [19, 1]])
def test_blocks_and_padding_change_nothing(model: HiddenDrafter, blocks: list[int]) -> None:
    tokens = [
        int(t) for t in torch.randint(3, 24, (20,), generator=torch.Generator().manual_seed(5))
    ]
    hidden = states_of(model.target, tokens, model.layers)[None]
    ids, at = torch.tensor([tokens]), torch.arange(20)[None]
    whole = GivenText(model.head, 3).read(model.embed(ids), hidden, at, at >= 0)
    # the same text after three columns of padding, beside one without
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), ids], 1).repeat(2, 1)
    states = torch.cat([torch.full_like(hidden[:, :3], 7), hidden], 1).repeat(2, 1, 1, 1)
    real = torch.ones_like(padded, dtype=torch.bool)
    real[0, :3] = False
    positions = (real.cumsum(1) - 1).clamp(min=0)
    reader, parts, begin = GivenText(model.head, 3), [], 0
    for size in [3, *blocks]:
        part = slice(begin, begin + size)
        read = (model.embed(padded[:, part]), states[:, part], positions[:, part], real[:, part])
        parts.append(reader.read(*read))
        begin += size
    for d in range(3):
        found = torch.cat([part[d] for part in parts], 1)[0, 3:]
        torch.testing.assert_close(found[1 + d :], whole[d][0, 1 + d :], atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("gamma", [1, 2, 5])
@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("reduced", [False, True])
def test_strict_greedy_loses_nothing(
    target: LanguageModel, prompt: list[int], gamma: int, reduced: bool
) -> None:
    model = heads.random_head(target, DRAFTED if reduced else None)
    drafter = HeadDrafter(model, Greedy())
    answer = decode(target, drafter, Match(Greedy()), prompt, gamma, LIMIT)
    assert answer.tokens == plain_greedy(target, prompt)
    assert max(call.drafted for call in answer.calls) == gamma


@torch.inference_mode()
def test_a_reduced_vocabulary_drafts_nothing_else(target: LanguageModel) -> None:
    full, reduced = heads.random_head(target), heads.random_head(target, DRAFTED)
    outputs = torch.randn(6, 32)
    everything, some = full.logits(outputs), reduced.logits(outputs)
    assert everything.shape == some.shape == (6, 24)
    rows = target.module.get_output_embeddings().weight[DRAFTED].bfloat16().float()
    torch.testing.assert_close(some[:, DRAFTED], reduced.head.norm(outputs) @ rows.T)
    assert reduced.projection.weight.dtype == torch.float32
    torch.testing.assert_close(some[:, DRAFTED], everything[:, DRAFTED], rtol=0, atol=0.02)
    rest = [token for token in range(24) if token not in DRAFTED]
    assert bool((some[:, rest] == -torch.inf).all())


@torch.inference_mode()
@pytest.mark.parametrize("drafted", [None, DRAFTED])
def test_a_bfloat16_target_with_a_float32_head(drafted: torch.Tensor | None) -> None:
    target = wrap(random_model(V).module.bfloat16(), "t", torch.device("cpu"))
    model = heads.random_head(target, drafted)
    model.head.bfloat16()
    logits = model.logits(torch.randn(3, 32).bfloat16())
    assert logits.dtype == torch.float32
    assert logits.isfinite().sum() == 3 * (24 if drafted is None else len(DRAFTED))


def test_the_first_entry_sees_itself_alone(model: HiddenDrafter) -> None:
    """Unseen entries are neither read nor NaN."""
    depths, shape = GivenText(model.head, 2), (1, 3, 2, 32)
    seen = torch.tensor([[False, True, True]])
    outputs = depths.read(torch.randn(1, 3, 32), torch.randn(shape), torch.arange(3)[None], seen)
    assert all(bool(output.isfinite().all()) for output in outputs)


def test_read_as_written(model: HiddenDrafter, tmp_path: Path) -> None:
    heads.write(heads.random_head(model.target, DRAFTED), tmp_path)
    read = load_head(heads.used(tmp_path), model.target)
    assert read.drafted is not None
    assert read.drafted.tolist() == DRAFTED.tolist()
    assert read.layers == model.layers
    ours = model.head.state_dict()
    for name, value in read.head.state_dict().items():
        torch.testing.assert_close(value, ours[name].bfloat16().float(), rtol=0, atol=0)
    heads.write(model, tmp_path)
    assert load_head(heads.used(tmp_path), model.target).drafted is None
