"""Drafts: against plain float64 arithmetic on two unpadded forward passes, and what is refused."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from analysis.acceptance import divergences
from pipeline.errors import PipelineError
from pipeline.execution import shards
from pipeline.execution.stopwatch import Stopwatch
from pipeline.execution.threads import in_threads
from pipeline.models import vocabulary
from pipeline.models.heads.hidden_drafter import GivenText
from pipeline.models.language_model import LanguageModel, hidden_states
from pipeline.models.load import new_qwen3, wrap
from pipeline.stages.drafts import compare
from pipeline.stages.drafts import compute as drafts
from pipeline.stages.drafts.compare import PairStatistics
from pipeline.stages.drafts.forced import Batch, ComparedPair, teacher_force
from pipeline.store import columns
from pipeline.store.artifacts import Artifact, Pending
from tests.analysis.cases import stored_columns
from tests.pipeline import heads
from tests.pipeline.fakes import record

VOCAB, K, TOKENS = 96, 16, 90
PROMPTS = {"a": [5, 6, 7], "b": [8, 9, 10, 11, 12, 13], "c": [14]}
ANSWERS = {"a": [20, 21, 22, 23], "b": [24, 25], "c": [26, 27, 28]}


def tiny(seed: int, vocab: int = VOCAB) -> LanguageModel:
    torch.manual_seed(seed)
    shape = SimpleNamespace(hidden_size=32, layers=2, intermediate_size=48, heads=2, kv_heads=1)
    module = new_qwen3(shape, vocab)
    with torch.no_grad():
        for weight in module.parameters():
            weight.mul_(4)  # the default initialisation gives nearly uniform distributions
    return wrap(module, f"tiny-{seed}", torch.device("cpu"), "float32", (2,), "test")


def pair_statistics(
    target: torch.Tensor, draft: torch.Tensor, temperature: float, sampled: float | None = None
) -> PairStatistics:
    return compare.compare(target, [draft], temperature, sampled)[0]


def pair(target: LanguageModel, drafter: LanguageModel, block: int = 1 << 20) -> ComparedPair:
    rows = min(target.vocab_size, drafter.vocab_size)
    return ComparedPair(target, drafter, rows, K, min(64, rows), 1.0, block)


def plain(model: LanguageModel, name: str, rows: int = VOCAB) -> np.ndarray:
    """Logits of one prompt's answer: one unpadded forward pass without a cache."""
    ids = torch.tensor([PROMPTS[name] + ANSWERS[name]])
    with torch.inference_mode():
        logits = model.module(input_ids=ids).logits[0]
    return logits[len(PROMPTS[name]) - 1 : -1, :rows].numpy()


def run(both: ComparedPair) -> Any:
    batch = Batch.make(list(PROMPTS.values()), list(ANSWERS.values()), torch.device("cpu"))
    return teacher_force(both, batch, Stopwatch(torch.device("cpu")), lambda steps: None)


@pytest.mark.parametrize("block", [1 << 20, 3 * VOCAB])  # all at once, a position at a time
def test_all_columns_equal_plain_forward_passes(block: int) -> None:
    both = pair(tiny(1), tiny(2), block)
    found = run(both)
    for row, name in enumerate(PROMPTS):
        n = len(ANSWERS[name])
        z, w = plain(both.target, name), plain(both.drafter, name)
        wanted = divergences.compare_logits(z, w)
        # float32 passes with another batch and cache: logits agree to about 1e-5
        for field, values in own(found.pair).items():
            np.testing.assert_allclose(
                values[row, :n], getattr(wanted, field), rtol=2e-4, atol=1e-6, err_msg=field
            )
        stored = stored_columns(z, K)
        np.testing.assert_array_equal(found.target.top_ids[row, :n], stored["top_ids"])
        np.testing.assert_allclose(found.target.entropy[row, :n], stored["entropy"], rtol=1e-4)
        np.testing.assert_allclose(found.target.log_tail[row, :n], stored["log_tail"], atol=1e-4)


@pytest.fixture(params=["compiled", "torch"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both forms of the sums: that of the CPU and that of CUDA."""
    if request.param == "torch":
        monkeypatch.setattr(compare, "divergence_sums", compare.sums_on_device)


@pytest.mark.usefixtures("either")
def test_device_formulas_equal_the_numpy_ones() -> None:
    rng = np.random.default_rng(0)
    z = (3 * rng.standard_normal((40, 200))).astype(np.float32)
    w = (z + rng.standard_normal((40, 1)) ** 3 * rng.standard_normal((40, 200))).astype(np.float32)
    z[:10], w[:20] = z[:10].round(), w[:20].round()  # ties
    w[39] = z[39]
    found = pair_statistics(torch.from_numpy(z), torch.from_numpy(w), 1.0)
    for field, wanted in vars(divergences.compare_logits(z, w)).items():
        # sums of 200 float64 terms in another order
        np.testing.assert_allclose(
            getattr(found, field), wanted, rtol=1e-11, atol=1e-15, err_msg=field
        )
    tempered = pair_statistics(torch.from_numpy(z), torch.from_numpy(w), 2.0)
    np.testing.assert_allclose(
        tempered.kl, divergences.compare_logits(z / 2, w / 2).kl, rtol=1e-11, atol=1e-15
    )


def own(found: PairStatistics) -> dict[str, torch.Tensor]:
    """The columns at the certified temperature: those of analysis.acceptance.divergences."""
    columns_of = found._asdict().items()
    return {name: values for name, values in columns_of if not name.startswith("sampled_")}


def test_laws_of_sampling_are_at_the_temperature_of_the_answers() -> None:
    rng = np.random.default_rng(0)
    z, w = (torch.from_numpy(2 * rng.standard_normal((30, 50), dtype=np.float32)) for _ in range(2))
    found = pair_statistics(z, w, 1.0, 0.5)
    wanted = divergences.compare_logits(z.numpy() / 0.5, w.numpy() / 0.5)
    for name in ("kl", "tv", "erss_acceptance", "harmonic_mean"):
        law = getattr(found, f"sampled_{name}")
        np.testing.assert_allclose(law, getattr(wanted, name), rtol=1e-11)
        assert not np.allclose(law, getattr(found, name))
    drafted = torch.softmax(z.double() / 0.5, 1)[range(30), w.argmax(1)]
    np.testing.assert_allclose(found.sampled_draft_prob, drafted, rtol=1e-11)
    same = pair_statistics(z, w, 0.5, 0.5)
    assert torch.equal(same.sampled_tv, same.tv)
    unknown = pair_statistics(z, w, 1.0)._asdict()
    assert all(t.isnan().all() for name, t in unknown.items() if name.startswith("sampled_"))


def test_the_target_is_also_stored_at_the_temperature_of_the_answers() -> None:
    both = pair(tiny(1), tiny(2))
    assert all(column.isnan().all() for column in run(both).sampled)
    found = run(replace(both, sampled=0.5))
    for row, name in enumerate(PROMPTS):
        n = len(ANSWERS[name])
        wanted = stored_columns(plain(both.target, name), K, 0.5)
        for field, values in found.sampled._asdict().items():
            np.testing.assert_allclose(values[row, :n], wanted[field], rtol=1e-3, atol=1e-4)
        stored = stored_columns(plain(both.target, name), K)
        np.testing.assert_allclose(found.target.entropy[row, :n], stored["entropy"], rtol=1e-4)


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k", "found"),
    [(0.5, 1.0, 0, 0.5), (0.0, 1.0, 0, None), (0.5, 0.9, 0, None), (0.5, 1.0, 5, None)],
)
def test_answers_have_a_temperature_when_drawn_from_the_whole_distribution(
    temperature: float, top_p: float, top_k: int, found: float | None
) -> None:
    sampling = {"temperature": temperature, "top_p": top_p, "top_k": top_k}
    assert drafts.sampled_temperature(sampling) == found


@pytest.mark.usefixtures("either")
def test_masked_tokens_on_the_device() -> None:
    """-inf in both, in the target's or in the drafter's logits alone; all of it at 1e4 as well."""
    rng = np.random.default_rng(1)
    z, w = (rng.integers(-4000, 1, (30, 20)).astype(np.float32) / 1024 for _ in range(2))
    z[:, 3:6] = w[:, 5:9] = -np.inf
    w[20:, 9:] = z[20:, 9:] = -np.inf
    w[:10, 5:9] = 0.5  # the rest have a drafter that masks what the target has: KL is infinite
    wanted = vars(divergences.compare_logits(z, w))
    assert np.isposinf(wanted["kl"]).tolist() == [False] * 10 + [True] * 20
    for shift in (np.float32(0), np.float32(10_000)):
        found = pair_statistics(torch.from_numpy(z + shift), torch.from_numpy(w + shift), 1.0)
        for field, values in wanted.items():
            np.testing.assert_allclose(
                getattr(found, field), values, rtol=1e-12, atol=1e-15, err_msg=field
            )


def test_long_sums_keep_their_digits() -> None:
    """Against exact sums of the same terms: far below the rounding that a certificate allows."""
    rng = np.random.default_rng(5)
    z = torch.from_numpy(2 * rng.standard_normal((2, 50_001)))
    logs = [torch.log_softmax(x, 1) for x in (z, z + torch.from_numpy(rng.random(z.shape)))]
    log_p, log_q = logs
    (p, q), d = (x.exp() for x in logs), log_p - log_q
    assert int((d.abs() < divergences.SERIES_BELOW).sum()) > 1000
    found = compare.divergence_sums(log_p, p, log_q, q)
    by_torch = compare.sums_on_device(log_p, p, log_q, q)
    for one, other in zip(found, by_torch, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=0)
    exact = [math.fsum((abs(row)).tolist()) / 2 for row in p - q]
    np.testing.assert_allclose(found.tv, exact, rtol=1e-14)


def test_one_order_of_ratios_serves_both_temperatures() -> None:
    """With ties of p/q and tokens masked in one model or both, in rows of more than one chunk."""
    rng = np.random.default_rng(2)
    z, w = (rng.integers(-3, 4, (50, 9000)).astype(np.float32) for _ in range(2))
    z[:, 3:6] = w[:, 5:9] = -np.inf
    found = pair_statistics(torch.from_numpy(z), torch.from_numpy(w), 2.0, 0.5)
    for name, temperature in (("", 2.0), ("sampled_", 0.5)):
        wanted = divergences.compare_logits(z / temperature, w / temperature)
        for law in ("tv", "erss_acceptance", "harmonic_mean"):
            np.testing.assert_allclose(
                getattr(found, name + law), getattr(wanted, law), rtol=1e-11, err_msg=name + law
            )


@pytest.mark.parametrize("size", [48, VOCAB])
def test_kl_and_tv_can_be_audited_from_the_columns(size: int, tmp_path: Path) -> None:
    """All 64 >= V tokens of q are there: both follow. Else the stored ones bound both below."""
    target, drafter = tiny(1, size), tiny(2, size)
    both = ComparedPair(target, drafter, size, size, min(drafts.DRAFT_K, size), 1.0, 1 << 20)
    prompts = {name: [token % size for token in ids] for name, ids in PROMPTS.items()}
    answers = {
        name: pa.table({
            "token_id": pa.array([token % size for token in ids], pa.int32()),
            "top_ids": pa.array([list(range(3))] * len(ids), pa.list_(pa.int32())),
            "top_logits": pa.array([[0.0] * 3] * len(ids), pa.list_(pa.float32())),
        })
        for name, ids in ANSWERS.items()
    }  # fmt: skip
    drafts.compare_shard(both, prompts, answers, tmp_path / "shard", lambda steps: None)
    for row in pq.read_table(tmp_path / "shard").to_pylist():
        ids = row["draft_top_ids"]
        assert len(ids) == min(64, size)
        p, q = np.zeros(size), np.zeros(size)
        for part, prefix in ((p, ""), (q, "draft_")):
            z = np.array(row[f"{prefix}top_logits"])
            log = (z - z[0]) - row[f"{prefix}top_surprisal"]
            part[row[f"{prefix}top_ids"]] = np.exp(log)
            rest = np.exp(row[f"{prefix}log_tail"])
            assert part.sum() + rest == pytest.approx(1, abs=1e-12)
        if size <= 64:
            assert row["tv"] == pytest.approx(np.abs(p - q).sum() / 2, abs=1e-12)
            assert row["kl"] == pytest.approx((p * np.log(p / q)).sum(), abs=1e-12)
            assert row["draft_entropy"] == pytest.approx(-(q * np.log(q)).sum(), abs=1e-12)
        else:  # the tokens of q that are not stored, taken as one
            a, b = (np.append(part[ids], 1 - part[ids].sum()) for part in (p, q))
            assert 0.5 * row["tv"] < np.abs(a - b).sum() / 2 <= row["tv"] + 1e-12
            assert 0.5 * row["kl"] < (a * np.log(a / b)).sum() <= row["kl"] + 1e-12


def test_a_drafter_equal_to_the_target_has_kl_zero() -> None:
    found = run(pair(tiny(1), tiny(1)))
    assert not found.pair.kl.any()
    assert (found.pair.argmax_rank == 1).all()


def test_rows_that_one_model_has_alone_are_left_out_and_their_mass_is_told() -> None:
    both = pair(tiny(1, VOCAB + 8), tiny(2))
    found = run(both)
    largest = 0.0
    for row, name in enumerate(PROMPTS):
        full = divergences.log_softmax(plain(both.target, name, VOCAB + 8))
        largest = max(largest, float(np.exp(full[:, VOCAB:]).sum(axis=1).max()))
        wanted = divergences.compare_logits(plain(both.target, name), plain(both.drafter, name))
        np.testing.assert_allclose(found.pair.kl[row, : len(wanted.kl)], wanted.kl, rtol=1e-4)
    lengths = torch.tensor([len(plain(both.target, name)) for name in PROMPTS])
    of_target, of_drafter = found.most_left_out(lengths).tolist()
    assert of_target == pytest.approx(largest, rel=1e-4)
    assert of_drafter == 0


def dump(folder: Path) -> Artifact:
    """Prompts and a dump whose first stored logit of prompt a is off by 0.5."""
    schema = columns.schema("distributions", k=K)
    tables = []
    for name, answer in ANSWERS.items():
        z = plain(tiny(1), name)
        order = np.argsort(-z, axis=1, kind="stable")[:, :K]
        top = np.take_along_axis(z, order, axis=1)
        top[0, 0] += 0.5 * (name == "a")
        zeros = np.zeros(len(answer))
        tables.append(
            pa.table(
                [
                    pa.repeat(name, len(answer)),
                    pa.array(range(len(answer)), pa.int32()),
                    pa.array(answer, pa.int32()),
                    pa.array(list(order.astype(np.int32)), schema[3].type),
                    pa.array(list(top), schema[4].type),
                    *[zeros] * 4,
                    *[pa.array([[]] * len(answer), pa.list_(pa.float64()))] * 3,
                ],
                schema=schema,
            )
        )
    pending = Pending(folder, "distributions")
    pending.write("data", pa.concat_tables(tables))
    sampling = {"temperature": 0.5, "top_p": 1.0, "top_k": 0}
    record(folder, "distributions", sampling, k=K, tokens_per_second=100.0)
    return Artifact(folder)


def test_stage_resumes_and_reports_drift(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dump").mkdir()
    (tmp_path / "prompts").mkdir()
    above = Pending(tmp_path / "prompts", "prompts")
    above.write(
        "data",
        pa.Table.from_pylist(
            [
                {
                    "prompt_id": name,
                    "source": "s",
                    "source_row": 0,
                    "text": "",
                    "token_ids": ids,
                    "n_tokens": len(ids),
                }
                for name, ids in PROMPTS.items()
            ],
            schema=columns.schema("prompts"),
        ),
    )
    record(tmp_path / "prompts", "prompts")
    upstream = {
        "prompts": [Artifact(tmp_path / "prompts")],
        "distributions": [dump(tmp_path / "dump")],
    }
    model = {"dtype": "float32", "head_dtype": "float32"}
    node = SimpleNamespace(
        label="tiny",
        config={"target": model, "drafter": model, "temperature": 1.0},
        settings={
            "target": {"label": "T", "path": "", "batch": 1},
            "drafter": {"label": "D", "path": "", "batch": 1},
        },
    )
    monkeypatch.setattr(
        drafts,
        "pair_tokenizer",
        lambda *_: SimpleNamespace(
            decode=lambda ids: f"<{ids[0]}>", get_vocab=lambda: {"last": TOKENS - 1}
        ),
    )
    loaded = {"targets.tiny": tiny(1), "drafter": tiny(2)}
    monkeypatch.setattr(drafts, "load_pair", lambda *_: tuple(loaded.values()))

    (tmp_path / "short").mkdir()
    with monkeypatch.context() as change:
        change.setattr(loaded["drafter"].module.config, "max_position_embeddings", 5)
        with pytest.raises(PipelineError, match="takes 5 tokens"):
            drafts.compute(node, upstream, Pending(tmp_path / "short", "drafts"))

    calls: list[list[str]] = []
    real = drafts.compare_shard

    def interrupted(*arguments: Any) -> dict[str, Any]:
        calls.append(list(arguments[1]))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(drafts, "compare_shard", interrupted)
    (tmp_path / "draft").mkdir()
    with pytest.raises(KeyboardInterrupt):
        drafts.compute(node, upstream, Pending(tmp_path / "draft", "drafts"))
    again = Pending(tmp_path / "draft", "drafts")
    drafts.compute(node, upstream, again)
    assert calls == [["b"], ["a"], ["a"], ["c"]]  # b was finished, and is not computed again
    record(tmp_path / "draft", "drafts")
    table = Artifact(tmp_path / "draft").read()
    assert table["prompt_id"].to_pylist() == ["a"] * 4 + ["b"] * 2 + ["c"] * 3
    assert table["token_id"].to_pylist() == [*ANSWERS["a"], *ANSWERS["b"], *ANSWERS["c"]]
    assert (
        dict(zip(*Artifact(tmp_path / "draft").read("tokens").to_pydict().values(), strict=True))[
            20
        ]
        == "<20>"
    )
    assert again.facts["drift"]["max_logit_difference"] == pytest.approx(0.5, abs=1e-3)
    assert again.facts["drift"]["changed_argmax"] == 0
    assert again.facts["sampled_temperature"] == 0.5
    found = table["sampled_tv"].to_numpy()
    assert ((found > 0) & (found < 1)).all()
    assert again.facts["seconds_per_thousand_steps"] > 0


def test_out_of_memory_halves_the_shard_in_the_plan_first(tmp_path: Path) -> None:
    (tmp_path / "draft").mkdir()
    pending = Pending(tmp_path / "draft", "prompts")
    plan = shards.Plan.open(pending, dict.fromkeys("abcd", 1), shards.at_most(4))
    done: list[list[str]] = []

    def compute(shard: shards.Shard, path: Path, progress: Any) -> dict[str, Any]:
        if len(shard.prompts) > 1:
            raise MemoryError
        done.append(shard.prompts)
        rows = {
            "prompt_id": shard.prompts,
            "source": ["s"],
            "source_row": [0],
            "text": [""],
            "later_turns": [[]],
            "token_ids": [[1]],
            "n_tokens": [1],
        }
        schema = columns.schema("prompts")
        shards.write_groups(path, iter([pa.table(rows, schema=schema)]), schema)
        return {"rows": 1}

    shards.compute_unfinished(plan, compute, steps=1, label="test", device=torch.device("cpu"))
    shards.join(plan, list("dcba"), pending, columns.schema("prompts"))
    assert done == [["a"], ["b"], ["c"], ["d"]]
    assert pending.rows == {"data": 4}


def test_permuted_vocabulary_is_refused() -> None:
    target = {f"t{i}": i for i in range(10)}
    vocabulary.check_same_tokens(target, dict(target), "A and B")
    permuted = target | {"t3": 7, "t7": 3}
    with pytest.raises(
        PipelineError,
        match=r"A and B: their tokenizers differ in 2 tokens "
        r"\('t3' is 3 and 7; 't7' is 7 and 3\)",
    ):
        vocabulary.check_same_tokens(target, permuted, "A and B")
    with pytest.raises(PipelineError, match="'t9' is 9 and missing"):
        vocabulary.check_same_tokens(target, {f"t{i}": i for i in range(9)}, "A and B")


def test_padded_rows_are_allowed_when_both_models_pad() -> None:
    assert vocabulary.common_rows(100, 100, 90, "A and B") == 100
    assert vocabulary.common_rows(100, 96, 90, "A and B") == 96
    assert vocabulary.common_rows(90, 90, 90, "A and B") == 90
    with pytest.raises(PipelineError, match="allowed when both models have them"):
        vocabulary.common_rows(100, 90, 90, "A and B")
    with pytest.raises(PipelineError, match="a model lacks some"):
        vocabulary.common_rows(100, 80, 90, "A and B")


def test_depth_statistics_are_those_of_the_pair() -> None:
    rng = np.random.default_rng(3)
    z = torch.from_numpy((3 * rng.standard_normal((30, 96))).round(1).astype(np.float32))
    w = torch.from_numpy((3 * rng.standard_normal((30, 96))).round(1).astype(np.float32))
    w[:20, ::3] = -torch.inf  # a reduced vocabulary
    whole, depths = compare.compare(z, [w, z, w], 0.7)
    for name, columns_of in depths._asdict().items():
        mine = getattr(whole, name.removeprefix("depth_"))
        assert columns_of.shape == (30, 3)
        torch.testing.assert_close(columns_of[:, 0], mine, rtol=0, atol=0)
        torch.testing.assert_close(columns_of[:, 2], mine, rtol=1e-12, atol=1e-14)
    assert not depths.depth_kl[:, 1].any()
    assert bool(whole.kl[:20].isinf().all() & whole.kl[20:].isfinite().all())


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_threads_share_rows_and_change_nothing(rows: int) -> None:
    """With as many threads as rows, fewer and more; mode and number of threads stay."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with torch.inference_mode():
            seen = in_threads(
                lambda part: (part, torch.get_num_threads(), torch.is_inference_mode_enabled()),
                rows,
                torch.device("cpu"),
            )
            assert torch.get_num_threads() == 2
        parts, threads, modes = zip(*seen, strict=True)
        assert [i for part in parts for i in range(part.start, part.stop)] == list(range(rows))
        assert len(parts) == min(rows, 2)
        assert all(modes)
        assert set(threads) == ({1} if rows > 1 else {2})
        with ThreadPoolExecutor(1) as later:
            assert later.submit(torch.get_num_threads).result() == 2
        with pytest.raises(ZeroDivisionError):
            in_threads(lambda part: part.start / part.start, rows, torch.device("cpu"))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_pair_is_compared_alike_by_one_thread_and_by_two() -> None:
    both, found = replace(pair(tiny(1), tiny(2)), sampled=0.5), []
    before = torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(run(both))
    torch.set_num_threads(before)
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(tuple(one), tuple(two), rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("block", [1 << 20, 3 * VOCAB])
@pytest.mark.parametrize("reduced", [False, True])
def test_a_head_is_compared_at_every_depth(block: int, reduced: bool) -> None:
    target = tiny(1)
    drafted = torch.arange(0, VOCAB, 2) if reduced else None
    head = heads.random_head(target, drafted)
    both = ComparedPair(target, head, VOCAB, K, 40, 1.0, block, depths=3)
    found = run(both)
    for row, name in enumerate(PROMPTS):
        n, text = len(ANSWERS[name]), torch.tensor([PROMPTS[name] + ANSWERS[name]])
        with torch.inference_mode():
            out = target.module(input_ids=text, output_hidden_states=True)
            at = torch.arange(text.shape[1])[None]
            outputs = GivenText(head, 3).read(text, hidden_states(out, head.layers), at, at >= 0)
        z = plain(target, name)
        for depth, output in enumerate(outputs):
            if len(PROMPTS[name]) - 1 < 1 + depth:
                continue  # a draft that would begin before the text does
            w = head.logits(output[0])[len(PROMPTS[name]) - 1 : -1].numpy()
            wanted = divergences.compare_logits(z, w)
            for field in ("kl", "tv", "draft_rank", "argmax_rank"):
                np.testing.assert_allclose(
                    getattr(found.depths, f"depth_{field}")[row, :n, depth],
                    getattr(wanted, field),
                    rtol=5e-4,
                    atol=1e-5,
                    err_msg=f"{name} {field} {depth}",
                )
    torch.testing.assert_close(found.depths.depth_kl[:, :, 0], found.pair.kl)
