"""Reads the target's trajectories again, with target and drafter, and compares the two.

The certificate, the ranks and the KL of a step come from one pass of each model, so they belong to
the same p. How far it is from the p that the text was decoded with is reported as drift.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from pipeline.errors import PipelineError
from pipeline.execution.shard_plan import Plan, Shard, ShardMeasured, at_most
from pipeline.execution.shards import join, write_groups
from pipeline.execution.stopwatch import Stopwatch, describe_device, peak_memory
from pipeline.execution.workers import open_workers
from pipeline.models.forced import Batch, Found
from pipeline.models.heads.hidden_drafter import HiddenDrafter
from pipeline.models.language_model import LanguageModel
from pipeline.models.load import load_pair, pair_tokenizer
from pipeline.models.vocabulary import common_rows
from pipeline.plan.stage import pair_label
from pipeline.stages.drafts.forced import ComparedPair, teacher_force
from pipeline.store import columns
from pipeline.store.artifacts import Artifact, Pending
from pipeline.store.distributions import read_token_ids
from pipeline.store.node import Node

LOGITS_HELD = 1 << 25  # logits of one model held at once, 128 MB in float32
BATCH = 32  # prompts of a shard; larger ones were not faster
DRAFT_K = 64  # tokens of the drafter's distribution that are stored


def compute(node: Node, upstream: dict[str, list[Artifact]], pending: Pending) -> None:
    """Compare the pair on every step of the distributions in `upstream`."""
    if "log" in node.config:
        from pipeline.stages.drafts.logged import compare_logs

        compare_logs(node, upstream["distributions"][0], pending)
        return
    distributions, label = upstream["distributions"][0], pair_label(node)
    tokenizer = pair_tokenizer(node.config, node.settings, f"targets.{node.label}")
    prompts = read_token_ids(upstream["prompts"][0])
    answers = read_answers(distributions, ["token_id"])
    with open_workers(Comparer, node, upstream) as workers:
        plan = Plan.open(pending, {name: len(prompts[name]) for name in answers}, workers.cut)
        steps = max(map(len, answers.values()))
        workers.compute_unfinished(plan, steps=steps, label=label)
        pending.facts |= workers.facts(plan) | {"shards": len(plan.shards)}
    join(
        plan,
        list(answers),
        pending,
        columns.schema(
            "drafts",
            k=pending.facts["k"],
            draft_k=min(DRAFT_K, pending.facts["vocab_size"]),
            depths=depths_of(node),
        ),
    )
    write_tokens(tokenizer, answers, pending)
    print(
        "{}: {seconds_per_thousand_steps:.3g} s a thousand steps (their decoding took "
        "{generation_seconds_per_thousand_steps:.3g} s)".format(label, **pending.facts),
        flush=True,
    )


class Comparer:
    """A target and its drafter; see `pipeline.execution.workers.Worker`."""

    def __init__(self, node: Node, upstream: Mapping[str, Sequence[Artifact]]) -> None:
        """Load them, and what they read.

        Raises:
            PipelineError: one can't be loaded, or has not the room or the tokens for the answers.
        """
        tokenizer = pair_tokenizer(node.config, node.settings, f"targets.{node.label}")
        self._tokens = 1 + max(tokenizer.get_vocab().values())
        self._node, self._distributions = node, upstream["distributions"][0]
        self._prompts = read_token_ids(upstream["prompts"][0])
        self._answers = read_answers(self._distributions, ["token_id", "top_ids", "top_logits"])
        self._pair = load_compared_pair(node, self._tokens, self._distributions)
        self.device = self._pair.target.device
        self._check_answers()

    def _check_answers(self) -> None:
        pair, answers = self._pair, self._answers
        longest = max(len(self._prompts[name]) + len(answer) for name, answer in answers.items())
        for model in (pair.target, pair.drafter):
            if isinstance(model, LanguageModel):
                model.check_context(longest, "distributions.steps")
        largest = max(max(answer["token_id"].to_pylist()) for answer in answers.values())
        if largest >= pair.rows:
            raise PipelineError(
                f"{pair_label(self._node)}: the target emitted token {largest}, beyond the "
                f"{pair.rows} rows that both models have: take another drafter"
            )

    def cut(self, lengths: Sequence[int]) -> list[int]:
        """Return the sizes of the shards."""
        return at_most(self._node.settings["target"]["batch"] or BATCH)(lengths)

    def compute(self, shard: Shard, path: Path, progress: Callable[[int], object]) -> ShardMeasured:
        """Compare the two on the answers of a shard, and write it."""
        prompts = {name: self._prompts[name] for name in shard.prompts}
        answers = {name: self._answers[name] for name in shard.prompts}
        return compare_shard(self._pair, prompts, answers, path, progress)

    def facts(self, measured: Sequence[ShardMeasured]) -> dict[str, Any]:
        """Return what the record says of the pair, the run, its drift and its cost."""
        return pair_facts(self._node, self._pair, measured, self._distributions, self._tokens)


def load_compared_pair(node: Node, tokens: int, distributions: Artifact) -> ComparedPair:
    """Load both models and decide over which rows they are compared."""
    target, drafter = load_pair(node.config, node.settings, f"targets.{node.label}")
    rows = common_rows(target.vocab_size, drafter.vocab_size, tokens, pair_label(node))
    return ComparedPair(
        target,
        drafter,
        rows,
        min(distributions.record["facts"]["k"], rows),
        min(DRAFT_K, rows),
        node.config["temperature"],
        LOGITS_HELD,
        depths_of(node),
        sampled_temperature(distributions.record["config"]),
    )


def depths_of(node: Node) -> int:
    """Return the depths of a draft at which the drafter is compared."""
    depths: int = node.config["drafter"].get("head", {}).get("depths", 1)
    return depths


def sampled_temperature(sampling: Mapping[str, Any]) -> float | None:
    """Return the temperature at which answers were drawn from the whole distribution.

    None where they were decoded greedily, or drawn from the part that top_p or top_k leaves: the
    laws of stochastic verification at a temperature belong to text sampled at it.
    """
    whole = sampling["top_p"] == 1 and sampling["top_k"] == 0
    return sampling["temperature"] if whole and sampling["temperature"] > 0 else None


def read_answers(distributions: Artifact, read: Sequence[str]) -> dict[str, pa.Table]:
    """Return the columns `read` of the steps of every prompt."""
    table = distributions.read(columns=["prompt_id", *read])
    ids = table["prompt_id"].to_numpy()
    starts = np.flatnonzero(np.append(True, ids[1:] != ids[:-1]))
    ends = np.append(starts[1:], len(ids))
    return {
        ids[begin]: table.slice(begin, end - begin)
        for begin, end in zip(starts.tolist(), ends.tolist(), strict=True)
    }


def compare_shard(
    pair: ComparedPair,
    prompts: dict[str, list[int]],
    answers: dict[str, pa.Table],
    path: Path,
    progress: Callable[[int], object],
) -> dict[str, Any]:
    """Compute and write one shard; return what was measured."""
    watch = Stopwatch(pair.target.device)
    tokens = [answer["token_id"].to_pylist() for answer in answers.values()]
    batch = Batch.make(list(prompts.values()), tokens, pair.target.device)
    found = teacher_force(pair, batch, watch, progress)
    inside = torch.arange(max(map(len, tokens)), device=batch.ids.device) < batch.lengths[:, None]
    left_out = torch.where(inside[..., None], found.pop("left_out"), 0).amax((0, 1))
    with watch("write"):
        drifts: list[dict[str, Any]] = []
        schema = columns.schema("drafts", k=pair.k, draft_k=pair.draft_k, depths=pair.depths)
        write_groups(path, forced_tables(found, pair, answers, drifts, schema), schema)
    return {
        "seconds": watch.seconds(),
        "rows": sum(map(len, answers.values())),
        "changed_argmax": sum(drift["changed_argmax"] for drift in drifts),
        "max_logit_difference": max(drift["max_logit_difference"] for drift in drifts),
        "left_out": left_out.tolist(),
    }


def forced_tables(
    found: Found,
    pair: ComparedPair,
    answers: dict[str, pa.Table],
    drifts: list[dict[str, Any]],
    schema: pa.Schema,
) -> Iterator[pa.Table]:
    """Yield the rows of each prompt; appends the drift of each to `drifts`.

    Raises:
        PipelineError: an entropy is NaN, as a logit was NaN or infinite.
    """
    values = {name: t.cpu() for name, t in found.items() if name in schema.names}
    for row, (prompt, answer) in enumerate(answers.items()):
        n = len(answer)
        rows = {name: t[row, :n].numpy() for name, t in values.items()}
        broken = np.flatnonzero(~np.isfinite(rows["entropy"] + rows["draft_entropy"]))
        if len(broken):
            raise PipelineError(
                f"{pair.target.label} and {pair.drafter.label}: NaN or infinite logits for prompt "
                f"{prompt} at step {broken[0]}: try dtype: float32 or attention: eager for both "
                "models, and check their weights"
            )
        drifts.append(drift(answer, rows["top_ids"], rows["top_logits"]))
        arrays = {
            "prompt_id": pa.repeat(prompt, n),
            "position": pa.array(range(n), pa.int32()),
            "token_id": answer["token_id"],
        }
        arrays |= {
            name: columns.array(part, schema.field(name).type) for name, part in rows.items()
        }
        yield pa.table([arrays[name] for name in schema.names], schema=schema)


def drift(answer: pa.Table, ids: np.ndarray, logits: np.ndarray) -> dict[str, Any]:
    """Compare the (n, K) top logits of this pass with those stored when the text was decoded."""
    stored = [
        answer[name].combine_chunks().flatten().to_numpy().reshape(len(answer), -1)
        for name in ("top_ids", "top_logits")
    ]
    differences = [0.0]
    for old_ids, old, new_ids, new in zip(*stored, ids, logits, strict=True):
        _, left, right = np.intersect1d(old_ids, new_ids, assume_unique=True, return_indices=True)
        old, new = old[left], new[right]
        same = old == new  # masked tokens as well
        differences.append(float(np.abs(old[~same] - new[~same]).max(initial=0)))
    return {
        "changed_argmax": int(np.sum(stored[0][:, 0] != ids[:, 0])),
        "max_logit_difference": max(differences),
    }


def pair_facts(
    node: Node,
    pair: ComparedPair,
    measured: Sequence[ShardMeasured],
    distributions: Artifact,
    tokens: int,
) -> dict[str, Any]:
    """Return what the record says of the pair, the run, its drift and its cost."""
    seconds: Counter[str] = Counter()
    for shard in measured:
        seconds.update(shard["seconds"])

    def each(name: str) -> list[Any]:
        return [shard[name] for shard in measured]

    def of_model(model: LanguageModel | HiddenDrafter, config: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "model": model.label,
            "commit": config.get("commit"),
            "dtype": config["dtype"],
            "logits_dtype": config["head_dtype"],
            "vocab_size": model.vocab_size,
        }

    of_drafter = of_model(pair.drafter, node.config["drafter"])
    if isinstance(pair.drafter, HiddenDrafter):  # it runs in the dtypes of its target
        of_target = of_model(pair.target, node.config["target"])
        of_drafter |= {name: of_target[name] for name in ("dtype", "logits_dtype")}
        of_drafter["head"] = node.config["drafter"]["head"]
    steps = sum(each("rows"))
    target_out, draft_out = (max(column) for column in zip(*each("left_out"), strict=True))
    return {
        "target": of_model(pair.target, node.config["target"]),
        "drafter": of_drafter,
        "vocab_size": pair.rows,
        "tokenizer_tokens": tokens,
        "largest_mass_left_out": {"target": target_out, "drafter": draft_out},
        "k": pair.k,
        "temperature": pair.temperature,
        "sampled_temperature": pair.sampled,
        "drift": {
            "max_logit_difference": max(each("max_logit_difference")),
            "changed_argmax": sum(each("changed_argmax")),
            "steps": steps,
        },
        **describe_device(pair.target.device),
        "steps": steps,
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
        "seconds_per_thousand_steps": round(1000 * sum(seconds.values()) / steps, 4),
        "generation_seconds_per_thousand_steps": round(
            1000 / distributions.record["facts"]["tokens_per_second"], 4
        ),
        "peak_memory_bytes": peak_memory(pair.target.device),
    }


def write_tokens(tokenizer: Any, answers: dict[str, pa.Table], pending: Pending) -> None:
    """Write the text of every emitted token, so that readers of the artifact need no tokenizer."""
    used = sorted(
        {token for answer in answers.values() for token in answer["token_id"].to_pylist()}
    )
    pending.write(
        "tokens",
        pa.table(
            [pa.array(used, pa.int32()), [tokenizer.decode([token]) for token in used]],
            schema=columns.schema("drafts", "tokens"),
        ),
    )
