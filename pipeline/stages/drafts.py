"""Stage drafts: target and drafter on the target's own trajectories, over the full vocabulary.

Run it with ``python -m pipeline stage=drafts drafter=...``. The certificate, the ranks and the KL
of a step come from one pass of each model, so they belong to the same p. How far it is from the p
that the text was decoded with is reported as drift.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pipeline import columns
from pipeline.columns import STEP, TARGET, Column, Columns
from pipeline.errors import PipelineError
from pipeline.models.prompt_tokens import common_rows
from pipeline.stage import Stage, Task
from pipeline.stored import read_token_ids, steps_by_prompt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from pipeline.models.compare import ComparedPair
    from pipeline.stage import Inputs, Json, Out
    from pipeline.study import Study
    from pipeline.workers import Progress, Result

ROLES = ("target", "drafter")
LOGITS_HELD = 1 << 25  # logits of one model held at once, 128 MB in float32
BATCH = 32  # prompts of a shard; larger ones were not faster
DRAFT_K = 64  # tokens of the drafter's distribution that are stored

_SAMPLED = (
    'at the sampling temperature of the answers (`facts["sampled_temperature"]`); NaN for greedy '
    "answers"
)
PAIR: Columns = {  # target p against drafter q
    "kl": Column("float64", "KL(p‖q) over the whole vocabulary; inf where q lacks a token of p"),
    "tv": Column("float64", "total variation; speculative sampling accepts with 1 - tv"),
    "draft_token_id": Column("int32", "the drafter's argmax"),
    "draft_rank": Column("int32", "its rank under p, from 1"),
    "draft_log_prob": Column("float64", "its log-probability under p"),
    "argmax_rank": Column("int32", "rank of p's argmax under q, from 1"),
    "draft_entropy": Column("float64", "of q, nats"),
    "sampled_tv": Column("float64", f"the same {_SAMPLED}"),
    "sampled_erss_acceptance": Column(
        "float64", f"probability that exponential races accept the first draft, {_SAMPLED}"
    ),
    "sampled_harmonic_mean": Column("float64", f"its lower bound, {_SAMPLED}"),
}
# q' as HiddenDrafter.completed gives it
_FULL = (
    "only of a head with a reduced vocabulary: KL(p‖q′) at depth 1, where q′ gives probability to "
    'the missing tokens (`facts["completed"]`); inf where the draft is no first choice of q′'
)
FULL: Columns = {"full_kl": Column("float64", _FULL, optional=True)}
DRAFT: Columns = {  # with draft_entropy: kl and tv can be checked from them
    "draft_top_ids": Column("list<int32>", "as top_ids, of the drafter: min(64, V) tokens"),
    "draft_top_logits": Column("list<float32>", "as top_logits, of the drafter"),
    "draft_top_surprisal": Column("float64", "as top_surprisal, of the drafter"),
    "draft_log_tail": Column("float64", "as log_tail, of the drafter"),
}
_DEPTH = "the same at depths 1, 2, ... of a head's draft; a language model has one depth"
DEPTHS: Columns = {
    f"depth_{name}": Column(f"list<{PAIR[name].kind}>", _DEPTH)
    for name in ("kl", "tv", "draft_token_id", "draft_rank", "draft_log_prob", "argmax_rank")
}


def plan(study: Study) -> list[Task]:
    """Return one planned artifact a target, on its trajectories; none without a drafter.

    Raises:
        PipelineError: prompts may be too short for the depths of a head.
    """
    config, drafter = study.config, study.config.drafter
    if drafter is None or config.distributions.source == "logs":
        return []
    if drafter.head is not None and _wanted(study):
        depths, shortest = drafter.head.depths, config.prompts.min_tokens
        if shortest <= depths:  # a draft follows a token with a hidden state, and one read with it
            raise PipelineError(
                f"prompts.min_tokens={shortest} is too small for drafter.head.depths={depths}: a "
                f"draft of that depth needs a prompt of at least {depths + 1} tokens"
            )
    spec = study.model_spec("drafter", drafter)
    made = []
    for steps in study.tasks["distributions"]:
        pair = (*steps.runtime.models, spec)
        settings: Json = {name: model.entries for name, model in zip(ROLES, pair, strict=True)}
        settings["temperature"] = config.certificates.temperature
        inputs = {"prompts": steps.inputs["prompts"], "distributions": steps}
        runtime = replace(steps.runtime, models=pair)
        made.append(Task(STAGE, steps.label, settings, inputs, runtime))
    return made


def _wanted(study: Study) -> bool:
    """Whether the artifacts are made: stage decoding takes them for some trees only."""
    from pipeline.methods import build_methods

    settings = study.config.decoding
    if study.config.stage != "decoding":
        return True
    methods = build_methods(settings.methods, study.decoded, settings.draft_length)
    return any(method.needs_drafts for method in methods)


def compute(task: Task, inputs: Inputs, out: Out) -> None:
    """Compare the pair on every step of the distributions; write the text of emitted tokens."""
    from pipeline.models.load import pair_tokenizer
    from pipeline.shards import compute_shards, join

    tokenizer = pair_tokenizer(*task.runtime.models)
    prompts = read_token_ids(inputs["prompts"])
    answers = steps_by_prompt(inputs["distributions"], ["token_id"])
    names = sorted(answers, key=lambda name: len(prompts[name]), reverse=True)
    steps = max(map(len, answers.values()))
    join(compute_shards(task, inputs, out, names, DraftsWorker, steps=steps), list(answers), out)
    used = {token for answer in answers.values() for token in answer["token_id"].to_pylist()}
    rows = [{"token_id": token, "text": tokenizer.decode([token])} for token in sorted(used)]
    out.write_rows(rows, "tokens")


class DraftsWorker:
    """A target and its drafter; see `pipeline.workers.Worker`."""

    def __init__(self, task: Task, inputs: Inputs) -> None:
        """Load both models and the text that they read.

        Raises:
            PipelineError: one can't be loaded, or has not the room or the tokens for the answers.
        """
        from pipeline.models.compare import ComparedPair
        from pipeline.models.language_model import LanguageModel
        from pipeline.models.load import load_pair, pair_tokenizer

        self._task, distributions, label = task, inputs["distributions"], task.runtime.pair
        models = task.runtime.models
        tokenizer = pair_tokenizer(*models)
        self._prompts = read_token_ids(inputs["prompts"])
        self._answers = steps_by_prompt(distributions, ["token_id", "top_ids", "top_logits"])
        target, drafter = load_pair(*models)
        head = models[1].head
        tokens = 1 + max(tokenizer.get_vocab().values())
        rows = common_rows(target.vocab_size, drafter.vocab_size, tokens, label)
        self._pair = ComparedPair(
            target,
            drafter,
            rows=rows,
            k=min(distributions.facts["k"], rows),
            draft_k=min(DRAFT_K, rows),
            temperature=task.settings["temperature"],
            block=LOGITS_HELD,
            depths=1 if head is None else head.depths,
            sampled=sampled_temperature(task.inputs["distributions"].settings),
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
        return self._task.runtime.models[0].device.batch or BATCH

    def compute(self, names: Sequence[str], progress: Progress) -> Result:
        """Compare the two on the answers of a shard."""
        prompts = {name: self._prompts[name] for name in names}
        answers = {name: self._answers[name] for name in names}
        return compare_shard(self._task, self._pair, prompts, answers, progress)

    def facts(self, measured: Sequence[Json]) -> Json:
        """Return the record's facts on the pair, the run and its drift."""
        from pipeline.models.heads.hidden_drafter import HiddenDrafter
        from pipeline.timing import describe_device, peak_memory

        pair, models = self._pair, self._task.runtime.models
        steps = sum(shard["rows"] for shard in measured)
        target, drafter = (
            {
                "model": model.label,
                "commit": of.identity.commit,
                "dtype": of.settings.dtype,
                "logits_dtype": of.settings.head_dtype,
                "vocab_size": model.vocab_size,
            }
            for model, of in zip((pair.target, pair.drafter), models, strict=True)
        )
        completed = {}
        if isinstance(pair.drafter, HiddenDrafter):  # it runs in the dtypes of its target
            drafter |= {name: target[name] for name in ("dtype", "logits_dtype")}
            drafter["head"] = models[1].entries["head"]
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


def sampled_temperature(distributions: Json) -> float | None:
    """Return the temperature at which answers were drawn from the whole distribution.

    None where they were decoded greedily: the schemes of stochastic verification at a temperature
    belong to text sampled at it.
    """
    return distributions["temperature"] if distributions["temperature"] > 0 else None


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
    import torch

    from pipeline.models.compare import teacher_force
    from pipeline.models.passes import Batch
    from pipeline.shards import tables_bytes

    tokens = [answer["token_id"].to_pylist() for answer in answers.values()]
    batch = Batch.make(list(prompts.values()), tokens, pair.target.device)
    measured = {name: column.cpu() for name, column in teacher_force(pair, batch, progress).items()}
    lengths = torch.tensor([len(answer) for answer in tokens])
    inside = torch.arange(int(lengths.max())) < lengths[:, None]
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


STAGE = Stage(
    name="drafts",
    version=8,
    upstream=("prompts", "distributions"),
    tables={
        "data": STEP
        | {"token_id": Column("int32", "the token emitted")}
        | TARGET
        | PAIR
        | DRAFT
        | DEPTHS
        | FULL,
        "tokens": {
            "token_id": Column("int32", "every token that occurs"),
            "text": Column("string", "its text"),
        },
    },
    plan=plan,
    compute=compute,
)
