"""Stage decoding on the tiny pair: failing prompts, metrics, resuming, and its other files."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch

from analysis.trees.index_entropies import index_entropies
from analysis.trees.topology import Topology
from pipeline.core.errors import PipelineError
from pipeline.core.store import Store
from pipeline.decoding import answer_scoring
from pipeline.decoding import session as pair
from pipeline.drafters import pairs
from pipeline.inputs import measured_trees
from pipeline.models.eagle3.drafter import teacher_forced_outputs
from pipeline.settings.methods import method_entries
from pipeline.stages.prompts import STAGE as PROMPTS_STAGE
from pipeline.study import Study
from tests import methods
from tests.pipeline import heads
from tests.pipeline.decoding.pair import PROMPTS, V, logits
from tests.pipeline.tiny import decoding_node, planned, publish, used

METHODS = [
    {"drafter": "model", "rule": "greedy", "draft_length": 3, "temperature": 0},
    {"drafter": "prompt_lookup", "rule": "greedy", "draft_length": 3, "temperature": 0},
    {"drafter": "model", "rule": "mars", "theta": 0.9, "draft_length": 3, "temperature": 0},
    {"drafter": "model", "sampling": "speculative", "draft_length": 2, "temperature": 1.0},
    {"drafter": "model", "sampling": "races", "draft_length": [1, 3], "temperature": 1.0},
]
TREES = [
    {"drafter": "model", "rule": "tree", "m": 2, "draft_length": 3, "temperature": 0},
    METHODS[0] | {"tree": "spec_infer", "draft_length": 4},
    {"drafter": "model", "sampling": ["speculative", "races"], "tree": "symmetric", "width": 2,
     "draft_length": 2, "temperature": 1.0},
]  # fmt: skip


@pytest.fixture(params=["model", "head"])
def stage(request, target, drafter, monkeypatch, tmp_path):
    """The stage on the tiny pair: a function of prompts that returns its artifact."""
    drafted = torch.arange(0, V, 2)
    drafts = drafter if request.param == "model" else heads.random_head(target, drafted)
    tokenizer = SimpleNamespace(get_vocab=lambda: {str(i): i for i in range(V)})
    monkeypatch.setattr(pairs, "pair_tokenizer", lambda *_: tokenizer)
    monkeypatch.setattr(pair, "load_pair", lambda *_: (target, heads.neural(drafts)))

    def run(prompts, chosen=METHODS):
        rows = [
            {"prompt_id": str(at), "source": "s", "token_ids": ids}
            for at, ids in enumerate(prompts)
        ]
        above = planned(PROMPTS_STAGE, "made", {"prompts": prompts})
        publish(above, Store(tmp_path), lambda out: out.write_rows(rows))
        task = decoding_node(
            used(""),
            used("", "drafter"),
            prompts=len(prompts),
            steps=12,
            methods=tuple(methods.build(chosen)),
        )
        return Store(tmp_path).get(replace(task, inputs={"prompts": above}))

    return run


def content(artifact):
    return {
        name: artifact.read(name).to_pylist()
        for name in ("data", "calls", "levels", "trajectory", "contexts", "failures")
    }


def test_prompts_that_fail_are_recorded_and_the_others_go_on(
    stage, drafter, request, monkeypatch, capsys
):
    """The first, with which methods are warmed up, an empty one, and one too long for a drafter.

    Methods take turns: each prompt begins with another.
    """
    real, turns = pair.decode_timed, []

    def short(of, method, prompt, read):
        if prompt.prompt_id == "0":
            raise torch.OutOfMemoryError("CUDA out of memory")
        if prompt.prompt_id == "3" and read.limit > pair.WARM_UP:
            turns.append((of.runs, method))
        return real(of, method, prompt, read)

    monkeypatch.setattr(pair, "decode_timed", short)
    monkeypatch.setattr(drafter.module.config, "max_position_embeddings", 20)
    made = stage([PROMPTS[0], [], PROMPTS[1], PROMPTS[0]])  # of 17 tokens, with answers of 12
    found, facts = content(made), made.metadata
    fits = "head" in request.node.name  # which has no context of its own
    reasons = ["out of memory: CUDA", "prompt is empty", "exceed the context of the drafter, 20 "]
    failures = [(row["prompt_id"], row["reason"]) for row in found["failures"]]
    assert [name for name, _ in failures] == ["0", "1", "2"][: 3 - fits]
    assert all(why in said for why, (_, said) in zip(reasons, failures, strict=False))
    assert facts["failed_prompts"] == len(failures)
    assert f"{len(failures)} of 4 prompts failed, the first with: out of" in capsys.readouterr().out
    assert {row["prompt_id"] for row in found["data"]} == ({"2", "3"} if fits else {"3"})
    for row in found["data"]:
        if facts["runs"][row["run"]]["lossless"] and row["temperature"] == 0:
            assert row["agreement"] == 1.0
    runs = turns[0][0]
    assert [method for _, method in turns] == [*runs[3:], *runs[:3]]
    assert all(row["processor_seconds"] > 0 for row in made.read("timings/runs").to_pylist())
    with pytest.raises(PipelineError, match="no prompt can be decoded: the prompt is empty"):
        stage([[], []])


@torch.inference_mode()
def test_the_drafters_pass_over_a_prompt_is_timed_once_beside_its_calls(stage):
    made = stage(PROMPTS)
    passes = made.read("timings/passes").to_pandas()
    assert (passes["begin_seconds"] > 0).all()
    assert (passes.groupby("prompt_id")["begin_seconds"].nunique() == 1).all()


def head_logits(model, text):
    """All logits (n, V) of a text at depth 1; those after the first token mean nothing."""
    states = heads.states_of(model.target, text, model.layers)[None]
    embedded = model.embed(torch.tensor([text]))
    return model.logits(teacher_forced_outputs(model.head, embedded, states, 1)[0])[0]


def test_nats_given_up_and_drafts_are_those_of_plain_passes(stage, target, drafter, request):
    found = content(stage([PROMPTS[1]]))
    for row in found["data"]:
        text = PROMPTS[1] + row["token_ids"]
        chosen = logits(target, text)[len(PROMPTS[1]) - 1 : -1].double().log_softmax(1)
        below = chosen.amax(1) - chosen[range(len(chosen)), row["token_ids"]]
        assert row["nats_given_up"] == pytest.approx(below.sum().item(), abs=1e-3)
    answer = found["data"][0]["token_ids"]
    text = PROMPTS[1] + answer
    if "head" in request.node.name:
        drafts = head_logits(heads.random_head(target, torch.arange(0, V, 2)), text)
    else:
        drafts = logits(drafter, text)
    drafted = drafts[len(PROMPTS[1]) - 1 : -1].argmax(1).tolist()
    assert [row["draft_token_id"] for row in found["trajectory"]] == drafted


def test_a_greedy_draft_is_the_first_of_equal_logits_and_ranked_by_the_target():
    target = torch.tensor([[2.0, 3.0, 3.0], [1.0, 1.0, 0.0]])
    drafts = torch.tensor([[0.0, 5.0, 5.0], [-torch.inf, 7.0, 7.0]])
    for dtype in (torch.float32, torch.bfloat16):
        found = answer_scoring.drafted_columns(target.to(dtype), drafts.to(dtype))
        assert found["draft_token_id"] == [1, 1]
        assert found["draft_rank"] == [1, 2]
        assert (found["z1"], found["z2"]) == ([3.0, 1.0], [3.0, 1.0])
        below = target.double().log_softmax(1)[:, 1].tolist()
        assert found["draft_log_prob"] == pytest.approx(below)
    alone = answer_scoring.drafted_columns(torch.zeros(2, 1), torch.zeros(2, 1))  # a single token
    assert (alone["draft_rank"], alone["z2"]) == ([1, 1], [-math.inf] * 2)


def test_calls_and_levels_of_trees_are_those_of_their_shape(stage):
    made = stage(PROMPTS, chosen=[METHODS[0], METHODS[3], *TREES])
    runs, found = made.metadata["runs"], content(made)
    shapes = {at: Topology(tuple(run["shape"].get("parents", ()))) for at, run in enumerate(runs)
              if "shape" in run}  # fmt: skip
    assert [len(shape) for shape in shapes.values()] == [14, 8, 6, 6]
    levels = {}
    for row in found["levels"]:
        levels.setdefault((row["prompt_id"], row["run"], row["position"]), []).append(row)
    for call in found["calls"]:
        mine = levels.pop((call["prompt_id"], call["run"], call["position"]), [])
        if call["run"] not in shapes:
            assert call["depth"] == call["drafted"]
            assert not mine
            continue
        shape = shapes[call["run"]].within(12 - call["position"] - 1)
        assert (call["drafted"], call["depth"]) == (len(shape), shape.depth)
        assert [row["level"] for row in mine] == list(range(1, call["tested"] + 1))
        node = -1
        for row in mine:
            assert row["children"] == len(shape.children[node])
            if row["accepted"]:
                node = shape.children[node][row["accepted"] - 1]
        assert sum(row["accepted"] > 0 for row in mine) == call["accepted"]
    assert not levels
    tree = next(at for at, run in enumerate(runs) if run["method"].startswith("tree"))
    assert runs[tree]["lossless"]


def test_contexts_are_those_of_plain_passes_along_the_baselines_answer(
    stage, target, drafter, request
):
    made = stage(PROMPTS[:2], chosen=TREES)
    runs, found = made.metadata["runs"], content(made)
    (run,) = {row["run"] for row in found["contexts"]}
    assert (runs[run]["drafter"], runs[run]["temperature"]) == ("none", 1.0)
    assert made.metadata["vocab_size"] == V
    answers = {row["prompt_id"]: row["token_ids"] for row in found["data"] if row["run"] == run}
    if "head" in request.node.name:  # it lacks half of the tokens
        assert {row["kl"] for row in found["contexts"]} == {math.inf}
        return
    for at, prompt in enumerate(PROMPTS[:2]):
        text = prompt + answers[str(at)]
        p, q = (
            logits(model, text)[len(prompt) - 1 : -1].double().log_softmax(1).numpy()
            for model in (target, drafter)
        )
        mine = [row for row in found["contexts"] if row["prompt_id"] == str(at)]
        assert [row["position"] for row in mine] == list(range(len(p)))
        wanted = (np.exp(p) * (p - q)).sum(1)
        assert [row["kl"] for row in mine] == pytest.approx(wanted.tolist(), abs=1e-3)
        for row, *laws in zip(mine, p, q, strict=True):
            greedy, races = index_entropies(*laws)[1:]
            assert row["greedy_entropy"] == pytest.approx(greedy, abs=1e-3)
            assert row["races_entropy"] == pytest.approx(races, abs=1e-3)


MEASURED = [
    METHODS[0] | {"tree": "optimal", "nodes": 4},
    {"drafter": "model", "sampling": ["speculative", "races"], "draft_length": 2,
     "temperature": 0.5, "tree": "optimal", "nodes": 4},
]  # fmt: skip


def drafts_of(p, q, ranks, stored):
    """An artifact of stage drafts with the same two distributions at every step."""
    columns = {"argmax_rank": ranks}
    for prefix, law in (("", p), ("draft_", q)):
        order = np.argsort(-law, kind="stable")[:stored]
        columns[f"{prefix}top_ids"] = [order.tolist()] * len(ranks)
        columns[f"{prefix}top_logits"] = [np.log(law[order]).tolist()] * len(ranks)
        columns[f"{prefix}top_surprisal"] = [-np.log(law.max())] * len(ranks)
        with np.errstate(divide="ignore"):
            tail = np.log(np.delete(law, order).sum())
        columns[f"{prefix}log_tail"] = [tail] * len(ranks)
    table = pa.table(columns)
    facts = {"vocab_size": len(p), "k": stored, "certified_temperature": 1.0}
    return SimpleNamespace(read=lambda columns: table.select(columns), metadata=facts)


def test_trees_take_the_acceptance_that_stage_drafts_measured():
    p, q = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.2, 0.5, 0.2, 0.1])
    built = methods.build([*MEASURED, MEASURED[1] | {"sampling": "argmax", "temperature": 1.0}])
    drafts = drafts_of(p, q, [1] * 60 + [2] * 20 + [4] * 20, 4)
    greedy, gss, erss, drawn = measured_trees.with_measured_trees(built, drafts)
    assert greedy.tree.acceptance == pytest.approx([0.6, 0.2, 0, 0.2])
    assert greedy.topology == Topology((-1, 0, -1, 1)).by_level()
    assert greedy.name == "greedy (tau* of 4)"
    # at temperature 0.5 probabilities are squared
    target, draft = (law**2 / (law**2).sum() for law in (p, q))
    tv = np.abs(target - draft).sum() / 2
    assert gss.tree.acceptance[0] == pytest.approx(1 - tv, abs=0.1)
    assert sum(erss.tree.acceptance) == pytest.approx(1)  # of four tokens, some one wins
    # most probable tokens of the drafter, not drawn: the target's probabilities of them
    assert drawn.tree.acceptance == pytest.approx([0.3, 0.4, 0.2, 0.1])
    assert not any("acceptance" in method_entries(one) for one in (greedy, gss, erss, drawn))


def test_what_lies_outside_the_stored_tokens_is_spread_over_them():
    p = np.array([0.4, 0.2, 0.1, 0.1, 0.1, 0.1])
    [method] = methods.build([MEASURED[1] | {"sampling": "races"}])
    whole = measured_trees.sibling_rates(drafts_of(p, p, [1] * 400, 6), method, 3)
    part = measured_trees.sibling_rates(drafts_of(p, p, [1] * 400, 2), method, 3)
    assert whole == pytest.approx([1, 0, 0])
    # the rest of the one model never meets the rest of the other: s / (1 + rest), not s + rest;
    # four equal tokens: at any temperature s is what it was
    share = (p**2)[:2].sum() / (p**2).sum()
    assert part[0] == pytest.approx(share / (2 - share), abs=0.08)


def test_stage_drafts_is_asked_for_only_where_a_tree_hangs_on_it(tmp_path):
    entry = "{drafter: model, rule: greedy, draft_length: 1, temperature: 0, tree: "
    for shape, wanted in (("optimal, nodes: 4}", True), ("batch, width: 4}", False)):
        study = Study("study=mini", *methods.overrides(entry + shape), f"outputs={tmp_path}")
        assert all(("drafts" in task.inputs) == wanted for task in study.tasks["decoding"])


def test_look_up_needs_no_drafter(tmp_path):
    entry = "{drafter: %s, rule: greedy, draft_length: 2, temperature: 0}"
    words = ["study=mini", "drafter=none", "prompts.count=2", "distributions.steps=8"]
    words += ["~targets.mini_small", f"outputs={tmp_path}"]
    study = Study(*words, *methods.overrides(entry % "prompt_lookup"))
    (made,) = study.make("decoding")
    table = made.read().to_pandas()
    assert table["agreement"].eq(1).all()
    assert table["run"].tolist() == [0, 1, 0, 1]
    assert made.read("trajectory").num_rows == 0
    assert made.metadata["bytes"].keys() == {"target"}
    assert not Study(*words, *methods.overrides(entry % "model")).tasks["decoding"]


def test_models_that_cannot_read_trees_are_refused_before_anything_is_decoded(
    stage, target, monkeypatch
):
    monkeypatch.setattr(target.module.config, "_attn_implementation", "flash_attention_2")
    with pytest.raises(PipelineError, match="tiny can't read draft trees"):
        stage(PROMPTS, chosen=TREES)
