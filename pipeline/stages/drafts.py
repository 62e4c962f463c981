"""Stage drafts: compares target and drafter along the target's own answers, over all tokens.

Run it with ``python -m pipeline stage=drafts drafter=...``. Each model reads a prompt and its
answer in one pass. The certificates, ranks and KL of a step come from this pass, so that they
belong to the same distribution p.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pipeline.core import columns
from pipeline.core.columns import STEP, TARGET, Column, Columns
from pipeline.core.errors import PipelineError
from pipeline.core.stage import Stage, Task
from pipeline.drafters.eagle3_head import Eagle3Head
from pipeline.inputs.artifact_readers import read_token_ids
from pipeline.models.tokens import common_rows

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    import pyarrow as pa
    from torch import Tensor

    from pipeline.core.stage import Inputs, Json, Out
    from pipeline.core.workers import Progress, Result
    from pipeline.study import Study

ROLES = ("target", "drafter")
SHARD_PROMPTS = 32
# texts in a batch: on a GPU launching kernels takes longest, a CPU is no faster with more
BATCH_TEXTS = {"cpu": 1, "cuda": 32}
MAX_LOGITS = 2**28  # of both models, held at once: 1 GB in float32
DRAFT_K = 64  # stored tokens of the drafter's distribution

PAIR: Columns = {  # target p against drafter q
    "kl": Column("float64", "KL(p‖q) over the whole vocabulary; inf where q lacks a token of p"),
    "draft_token_id": Column("int32", "the drafter's argmax"),
    "draft_rank": Column("int32", "its rank under p, from 1"),
    "draft_log_prob": Column("float64", "its log-probability under p"),
    "argmax_rank": Column("int32", "rank of p's argmax under q, from 1"),
}
DRAFT: Columns = {  # with top_ids and top_logits, kl can be checked from them
    "draft_top_ids": Column("list<int32>", "as top_ids, of the drafter: min(64, V) tokens"),
    "draft_top_logits": Column("list<float32>", "as top_logits, of the drafter"),
    "draft_top_surprisal": Column("float64", "as top_surprisal, of the drafter"),
    "draft_log_tail": Column("float64", "as log_tail, of the drafter"),
}
_DEPTH = "the same at depths 1, 2, ... of a head's draft; a language model has one depth"
DEPTHS: Columns = {
    f"depth_{name}": Column(f"list<{PAIR[name].kind}>", _DEPTH)
    for name in ("kl", "draft_rank", "draft_log_prob", "argmax_rank")
}
# q' is that of `Eagle3Drafter.completed`
_FULL = (
    "only of a head with a reduced vocabulary: KL(p‖q′) at depth 1, where q′ gives probability to "
    'the missing tokens (`facts["completed"]`); inf where the draft is no first choice of q′'
)
_SAMPLED = (
    'at the sampling temperature of the answers (`facts["sampled_temperature"]`); only of answers '
    "that were sampled"
)
OPTIONAL: Columns = {
    "full_kl": Column("float64", _FULL, optional=True),
    "sampled_tv": Column(
        "float64",
        f"total variation, {_SAMPLED}; speculative sampling accepts with 1 - it",
        optional=True,
    ),
    "sampled_erss_acceptance": Column(
        "float64",
        f"probability that exponential races accept the first draft, {_SAMPLED}",
        optional=True,
    ),
    "sampled_harmonic_mean": Column("float64", f"its lower bound, {_SAMPLED}", optional=True),
}


def plan(study: Study) -> list[Task]:
    """Return a task for each target; none without a drafter, or for logs."""
    config = study.config
    drafter = config.drafter
    if drafter is None or config.distributions.source == "logs":
        return []
    spec = study.model_spec("drafter", drafter)
    tasks = []
    for upstream in study.tasks["distributions"]:
        pair = (*upstream.runtime.models, spec)
        settings: Json = {name: model.entries for name, model in zip(ROLES, pair, strict=True)}
        settings["temperature"] = config.certificates.temperature
        inputs = {"prompts": upstream.inputs["prompts"], "distributions": upstream}
        runtime = replace(upstream.runtime, models=pair)
        tasks.append(Task(STAGE, upstream.label, settings, inputs, runtime))
    return tasks


def schema_with(present: Container[str]) -> pa.Schema:
    """Return the schema of data.parquet with those `OPTIONAL` columns that are `present`."""
    import pyarrow as pa

    fields = STAGE.schema()
    return pa.schema(
        [field for field in fields if field.name not in OPTIONAL or field.name in present]
    )


def compute(task: Task, inputs: Inputs, out: Out) -> None:
    """Compare target and drafter at every step of the answers."""
    from pipeline.core.shards import compute_shards, join

    prompts = read_token_ids(inputs["prompts"])
    answers = answers_of(inputs)
    names = sorted(answers, key=lambda name: len(prompts[name]), reverse=True)
    steps = max(map(len, answers.values()))
    join(compute_shards(task, inputs, out, names, DraftsWorker, steps=steps), list(answers), out)


def answers_of(inputs: Inputs) -> dict[str, list[int]]:
    """Return the answer tokens of every prompt, by its id."""
    table = inputs["distributions"].read(columns=["prompt_id", "position", "token_id"])
    tokens = columns.numbers(table["token_id"])
    starts = np.flatnonzero(columns.numbers(table["position"]) == 0)
    names = table["prompt_id"].take(starts).to_pylist()
    answers = np.split(tokens, starts[1:])
    return {name: answer.tolist() for name, answer in zip(names, answers, strict=True)}


class DraftsWorker:
    """Compares a target and its drafter: a `pipeline.core.workers.Worker`."""

    def __init__(self, task: Task, inputs: Inputs) -> None:
        from pipeline.drafters.pairs import load_pair, pair_tokenizer
        from pipeline.models.language_model import LanguageModel

        models = task.runtime.models
        label = task.runtime.pair
        self._task = task
        self._prompts = read_token_ids(inputs["prompts"])
        self._answers = answers_of(inputs)
        tokens = 1 + max(pair_tokenizer(*models).get_vocab().values())
        self.target, self.drafter = load_pair(*models)
        rows = self.drafter.model.vocab_size
        self._vocab_size = common_rows(self.target.vocab_size, rows, tokens, label)
        self._k = min(inputs["distributions"].metadata["k"], self._vocab_size)
        self._temperature = task.settings["temperature"]
        answers_temperature = task.inputs["distributions"].settings["temperature"]
        # None for greedy answers
        self._sampled = answers_temperature if answers_temperature > 0 else None
        head = models[1].head
        self._depths = 1 if head is None else head.depths
        if (shortest := min(map(len, self._prompts.values()))) < self._depths + (head is not None):
            raise PipelineError(
                f"{label}: drafts at drafter.head.depths={self._depths} need prompts of more "
                f"tokens than that, one has {shortest}: raise prompts.min_tokens, or lower depths"
            )
        longest = max(len(self._prompts[name]) + len(ids) for name, ids in self._answers.items())
        for model in (self.target, self.drafter.model):
            if isinstance(model, LanguageModel):
                model.check_context(longest, "distributions.steps")

    def batch(self) -> int:
        """Return the number of prompts in a shard."""
        return self._task.runtime.models[0].device.batch or SHARD_PROMPTS

    def compute(self, names: Sequence[str], progress: Progress) -> Result:
        """Compare the models on the answers of a shard; return a table of steps for each."""
        compared = {}
        for batch in self._batches(names):
            for name, values in zip(batch, self._compared(batch), strict=True):
                compared[name] = values
                progress(len(self._answers[name]))
        schema = schema_with(compared[names[0]])
        return {}, [columns.steps_table(name, values, schema) for name, values in compared.items()]

    def _batches(self, names: Sequence[str]) -> list[Sequence[str]]:
        """Split the texts of a shard into batches whose logits fit in memory."""
        longest = max(len(self._answers[name]) for name in names)
        rows = (2 + self._depths) * longest  # of the target, of each depth, and of q'
        fitting = MAX_LOGITS // (rows * self._vocab_size)
        size = max(1, min(BATCH_TEXTS[self.target.device.type], fitting))
        return [names[begin : begin + size] for begin in range(0, len(names), size)]

    def _compared(self, names: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
        """Run both models over a batch; yield the columns of each text."""
        from pipeline.drafters.pairs import read_pairs
        from pipeline.models.padding import left_padded

        texts = [[*self._prompts[name], *self._answers[name][:-1]] for name in names]
        ids, padding = left_padded(texts, self.target.device)
        keep = max(len(self._answers[name]) for name in names)
        logits, drafts, completed = read_pairs(
            self.target, self.drafter, ids, keep, self._depths, padding if len(texts) > 1 else None
        )
        for row, name in enumerate(names):
            part = slice(-len(self._answers[name]), None), slice(self._vocab_size)
            own_drafts = [draft[row][part] for draft in drafts]
            own_completed = None if completed is None else completed[row][part]
            yield self._columns(name, logits[row][part], own_drafts, own_completed)

    def _columns(
        self, name: str, target: Tensor, drafts: Sequence[Tensor], completed: Tensor | None
    ) -> dict[str, np.ndarray]:
        """Return the columns of an answer, from the logits (n, V) of both models."""
        from pipeline.models.logit_comparison import compare_logits
        from pipeline.models.logit_statistics import logit_statistics

        of_drafter = logit_statistics(drafts[0], min(DRAFT_K, self._vocab_size), self._temperature)
        tensors = logit_statistics(target, self._k, self._temperature)
        tensors |= {f"draft_{column}": values for column, values in of_drafter.items()}
        broken = (~(tensors["entropy"] + tensors["draft_entropy"]).isfinite()).nonzero()
        if len(broken):
            raise PipelineError(
                f"{self._task.runtime.pair}: NaN or infinite logits for prompt {name} at step "
                f"{int(broken[0])}: try dtype: float32 or attention: eager for both"
            )
        tensors |= compare_logits(target, drafts, self._temperature, self._sampled, completed)
        measured = {column: values.cpu().numpy() for column, values in tensors.items()}
        return measured | {"token_id": np.array(self._answers[name])}

    def metadata(self, _: Sequence[Json]) -> Json:
        """Return the record's metadata on the pair and the run."""
        from pipeline.models.devices import describe_device, peak_memory
        from pipeline.models.recorded_passes import can_record

        metadata: Json = {
            "vocab_size": self._vocab_size,
            "k": self._k,
            "certified_temperature": self._temperature,
            "sampled_temperature": self._sampled,
            **describe_device(self.target.device),
            "recorded_passes": can_record(self.target),
            "peak_memory_bytes": peak_memory(self.target.device),
        }
        if isinstance(self.drafter, Eagle3Head):  # it runs in the dtypes of its target
            entries = self._task.settings["target"]
            metadata["drafter"] = {name: entries[name] for name in ("dtype", "head_dtype")}
            metadata["completed"] = self.drafter.model.drafted is not None  # there is full_kl
        return metadata


STAGE = Stage(
    name="drafts",
    version=9,
    upstream=("prompts", "distributions"),
    tables={
        "data": STEP
        | {"token_id": Column("int32", "the token emitted")}
        | TARGET
        | PAIR
        | DRAFT
        | DEPTHS
        | OPTIONAL
    },
    plan=plan,
    compute=compute,
)
