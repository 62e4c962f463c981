"""Reads the target's trajectories again, with target and drafter, and compares the two.

The certificate, the ranks and the KL of a step come from one pass of each model, so they belong to
the same p. How far it is from the p that the text was decoded with is reported as drift.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from pipeline import columns
from pipeline.errors import PipelineError
from pipeline.models.heads.feature_head import GivenText
from pipeline.models.heads.hidden_drafter import HiddenDrafter
from pipeline.models.language_model import LanguageModel
from pipeline.models.load import load_pair, pair_tokenizer
from pipeline.models.logit_statistics import Found
from pipeline.models.passes import Batch, Texts, concat_columns
from pipeline.models.prompt_tokens import common_rows
from pipeline.plan.plain import to_plain
from pipeline.plan.specs import DistributionsSpec, ModelSpec
from pipeline.shards import Progress, Result, compute_shards, join, tables_bytes
from pipeline.stage import Inputs, Json, Task
from pipeline.stages.drafts.compare import ComparedPair, measure
from pipeline.store import Artifact, Out
from pipeline.stored import read_token_ids
from pipeline.timing import describe_device, peak_memory

LOGITS_HELD = 1 << 25  # logits of one model held at once, 128 MB in float32
BATCH = 32  # prompts of a shard; larger ones were not faster
DRAFT_K = 64  # tokens of the drafter's distribution that are stored


def compute(task: Task, inputs: Inputs, out: Out) -> None:
    """Compare the pair on every step of the distributions."""
    tokenizer = pair_tokenizer(*task.spec.models)
    prompts = read_token_ids(inputs["prompts"])
    answers = steps_by_prompt(inputs["distributions"], ["token_id"])
    names = sorted(answers, key=lambda name: len(prompts[name]), reverse=True)
    steps = max(map(len, answers.values()))
    join(compute_shards(task, inputs, out, names, DraftsWorker, steps=steps), list(answers), out)
    write_tokens(tokenizer, answers, out)


class DraftsWorker:
    """A target and its drafter; see `pipeline.shards.Worker`."""

    def __init__(self, task: Task, inputs: Inputs) -> None:
        """Load both models and the text that they read.

        Raises:
            PipelineError: one can't be loaded, or has not the room or the tokens for the answers.
        """
        self._task, distributions, label = task, inputs["distributions"], task.spec.label
        models = task.spec.models
        tokenizer = pair_tokenizer(*models)
        self._prompts = read_token_ids(inputs["prompts"])
        self._answers = steps_by_prompt(distributions, ["token_id", "top_ids", "top_logits"])
        target, drafter = load_pair(*models)
        tokens = 1 + max(tokenizer.get_vocab().values())
        rows = common_rows(target.vocab_size, drafter.vocab_size, tokens, label)
        self._pair = ComparedPair(
            target,
            drafter,
            rows=rows,
            k=min(distributions.facts["k"], rows),
            draft_k=min(DRAFT_K, rows),
            temperature=task.spec.temperature,
            block=LOGITS_HELD,
            depths=depths_of(task.spec.drafter),
            sampled=sampled_temperature(task.inputs["distributions"].spec),
        )
        longest = max(
            len(self._prompts[name]) + len(answer) for name, answer in self._answers.items()
        )
        for model in (target, drafter):
            if isinstance(model, LanguageModel):
                model.check_context(longest, "distributions.steps")
        largest = max(max(answer["token_id"].to_pylist()) for answer in self._answers.values())
        if largest >= rows:
            raise PipelineError(
                f"{label}: the target emitted token {largest}, beyond the {rows} rows that both "
                "models have: take another drafter"
            )

    def batch(self) -> int:
        """Return how many prompts are compared together."""
        return self._task.spec.target.device.batch or BATCH

    def compute(self, names: Sequence[str], progress: Progress) -> Result:
        """Compare the two on the answers of a shard."""
        prompts = {name: self._prompts[name] for name in names}
        answers = {name: self._answers[name] for name in names}
        return compare_shard(self._task, self._pair, prompts, answers, progress)

    def facts(self, measured: Sequence[Json]) -> Json:
        """Return the record's facts on the pair, the run and its drift."""
        pair, spec, steps = self._pair, self._task.spec, sum(shard["rows"] for shard in measured)
        target, drafter = (
            {
                "model": model.label,
                "commit": of.identity.commit,
                "dtype": of.settings.dtype,
                "logits_dtype": of.settings.head_dtype,
                "vocab_size": model.vocab_size,
            }
            for model, of in ((pair.target, spec.target), (pair.drafter, spec.drafter))
        )
        completed = {}
        if isinstance(pair.drafter, HiddenDrafter):  # it runs in the dtypes of its target
            drafter |= {name: target[name] for name in ("dtype", "logits_dtype")}
            drafter["head"] = to_plain(vars(spec.drafter.head))
            if pair.drafter.can_be_completed:
                completed = {"completed": True}
        target_out, draft_out = map(max, zip(*(s["left_out"] for s in measured), strict=True))
        return {
            "target": target,
            "drafter": drafter,
            **completed,  # there is full_kl
            "vocab_size": pair.rows,
            "largest_mass_left_out": {"target": target_out, "drafter": draft_out},
            "k": pair.k,
            "certified_temperature": pair.temperature,
            "sampled_temperature": pair.sampled,
            "drift": {
                "max_logit_difference": max(shard["max_logit_difference"] for shard in measured),
                "changed_argmax": sum(shard["changed_argmax"] for shard in measured),
                "steps": steps,
            },
            **describe_device(pair.target.device),
            "steps": steps,
            "peak_memory_bytes": peak_memory(pair.target.device),
        }


def depths_of(drafter: ModelSpec) -> int:
    """Return the depths of a draft at which the drafter is compared."""
    return 1 if drafter.head is None else drafter.head.depths


def sampled_temperature(spec: DistributionsSpec) -> float | None:
    """Return the temperature at which answers were drawn from the whole distribution.

    None where they were decoded greedily: the schemes of stochastic verification at a temperature
    belong to text sampled at it.
    """
    return spec.temperature if spec.temperature > 0 else None


def steps_by_prompt(distributions: Artifact, read: Sequence[str]) -> dict[str, pa.Table]:
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
    task: Task,
    pair: ComparedPair,
    prompts: dict[str, list[int]],
    answers: dict[str, pa.Table],
    progress: Progress,
) -> Result:
    """Compute one shard; return its measurements and its rows as a file.

    Raises:
        PipelineError: an entropy is NaN, as a logit was NaN or infinite.
    """
    tokens = [answer["token_id"].to_pylist() for answer in answers.values()]
    batch = Batch.make(list(prompts.values()), tokens, pair.target.device)
    measured = {name: column.cpu() for name, column in teacher_force(pair, batch, progress).items()}
    inside = torch.arange(max(map(len, tokens))) < batch.lengths.cpu()[:, None]
    left_out = torch.where(inside[..., None], measured.pop("left_out"), 0).amax((0, 1))
    drifts: list[tuple[int, float]] = []
    schema = task.stage.schema(optional="full_kl" in measured)

    def tables() -> Iterator[pa.Table]:
        for row, (prompt, answer) in enumerate(answers.items()):
            rows = {name: column[row, : len(answer)].numpy() for name, column in measured.items()}
            broken = np.flatnonzero(~np.isfinite(rows["entropy"] + rows["draft_entropy"]))
            if len(broken):
                raise PipelineError(
                    f"{pair.target.label} and {pair.drafter.label}: NaN or infinite logits for "
                    f"prompt {prompt} at step {broken[0]}: try dtype: float32 or attention: eager "
                    "for both models, and check their weights"
                )
            drifts.append(logit_drift(answer, rows["top_ids"], rows["top_logits"]))
            rows["token_id"] = answer["token_id"].to_numpy()
            yield columns.steps_table(prompt, rows, schema)

    content = tables_bytes(tables(), schema)
    changed, differences = zip(*drifts, strict=True)
    return {
        "rows": sum(map(len, tokens)),
        "changed_argmax": sum(changed),
        "max_logit_difference": max(differences),
        "left_out": left_out.tolist(),
    }, content


@torch.inference_mode()
def teacher_force(pair: ComparedPair, batch: Batch, progress: Progress) -> Found:
    """Run both models over `batch` and return the columns of each step, (B, n, ...).

    The columns are those of the stage, and `left_out` (B, n, 2): the probability of rows that one
    model has alone, target and drafter.
    """
    size, width = batch.ids.shape
    drafter = pair.drafter
    head = drafter if isinstance(drafter, HiddenDrafter) else None
    given = GivenText(head.head, pair.depths) if head else None
    target = Texts(pair.target, width, head.layers if head else (), padding=batch.padding)
    own = None if head else Texts(drafter, width, padding=batch.padding)
    parts = []
    for begin, end, steps in batch.blocks(
        pair.block, max(pair.target.vocab_size, drafter.vocab_size)
    ):
        ids, keep = batch.ids[:, begin:end], max(steps, 1)
        logits, completed = target.read(ids, keep), None
        if own is not None:
            drafts = [own.read(ids, keep).flatten(0, 1)]
        else:
            assert head is not None
            assert given is not None
            assert target.hidden is not None
            at, real = batch.positions[:, begin:end], batch.mask[:, begin:end].bool()
            read = given.read(head.embed(ids), target.hidden, at, real)
            if steps:
                outputs = [output[:, -keep:].flatten(0, 1) for output in read]
                drafts = [head.logits(output) for output in outputs]
                completed = head.completed(outputs[0], drafts[0])
        if steps:
            columns = measure(pair, logits.flatten(0, 1), drafts, completed)
            parts.append(
                {name: column.unflatten(0, (size, steps)) for name, column in columns.items()}
            )
            progress(size * steps)
    return concat_columns(parts, dim=1)


def logit_drift(answer: pa.Table, ids: np.ndarray, logits: np.ndarray) -> tuple[int, float]:
    """Compare the (n, K) top logits of this pass with those stored when the text was decoded.

    Returns:
        At how many steps the argmax is another, and the largest difference of a token's logits.
    """
    old_ids, old_logits = (columns.numbers(answer[name]) for name in ("top_ids", "top_logits"))
    largest = 0.0
    for a, b, old, new in zip(old_ids, ids, old_logits, logits, strict=True):
        _, left, right = np.intersect1d(a, b, assume_unique=True, return_indices=True)
        old, new = old[left], new[right]
        same = old == new  # masked tokens as well
        largest = max(largest, float(np.abs(old[~same] - new[~same]).max(initial=0)))
    return int(np.sum(old_ids[:, 0] != ids[:, 0])), largest


def write_tokens(tokenizer: Any, answers: dict[str, pa.Table], out: Out) -> None:
    """Write the text of every emitted token, so that readers of the artifact need no tokenizer."""
    used = {token for answer in answers.values() for token in answer["token_id"].to_pylist()}
    rows = [{"token_id": token, "text": tokenizer.decode([token])} for token in sorted(used)]
    out.write_rows(rows, "tokens")
