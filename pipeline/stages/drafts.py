"""Stage drafts: target and drafter on the target's own trajectories, over the full vocabulary.

Run it with ``python -m pipeline stage=drafts drafter=...``. The certificate, the ranks and the KL
of a step come from one pass of each model over a prompt and its answer, so they belong to the same
p.
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
BATCH = 32  # prompts of a shard
# texts that are read together: a GPU waits for launches, a CPU computes no faster
TOGETHER = {"cpu": 1, "cuda": 32}
LOGITS = 2**28  # of both models that are held at once, 1 GB in float32
DRAFT_K = 64  # tokens of the drafter's distribution that are stored

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
# q' as HiddenDrafter.completed gives it
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
    """Return one planned artifact a target, on its trajectories; none without a drafter."""
    config = study.config
    drafter = study.config.drafter
    if drafter is None or config.distributions.source == "logs":
        return []
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


def schema_with(there: Container[str]) -> pa.Schema:
    """Return the schema of data.parquet with those of the `OPTIONAL` columns that are there."""
    import pyarrow as pa

    fields = STAGE.schema()
    return pa.schema([of for of in fields if of.name not in OPTIONAL or of.name in there])


def compute(task: Task, inputs: Inputs, out: Out) -> None:
    """Compare the pair on every step of the distributions."""
    from pipeline.core.shards import compute_shards, join

    prompts = read_token_ids(inputs["prompts"])
    answers = answers_of(inputs)
    names = sorted(answers, key=lambda name: len(prompts[name]), reverse=True)
    steps = max(map(len, answers.values()))
    join(compute_shards(task, inputs, out, names, DraftsWorker, steps=steps), list(answers), out)


def answers_of(inputs: Inputs) -> dict[str, list[int]]:
    """Return the tokens of every prompt's answer."""
    table = inputs["distributions"].read(columns=["prompt_id", "position", "token_id"])
    tokens = columns.numbers(table["token_id"])
    starts = np.flatnonzero(columns.numbers(table["position"]) == 0)
    names = table["prompt_id"].take(starts).to_pylist()
    answers = np.split(tokens, starts[1:])
    return {name: answer.tolist() for name, answer in zip(names, answers, strict=True)}


class DraftsWorker:
    """A target and its drafter; see `pipeline.core.workers.Worker`."""

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
        self._rows = common_rows(self.target.vocab_size, rows, tokens, label)
        self._k = min(inputs["distributions"].metadata["k"], self._rows)
        self._temperature = task.settings["temperature"]
        of_answers = task.inputs["distributions"].settings["temperature"]
        self._sampled = of_answers if of_answers > 0 else None  # greedy answers have no such law
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
        """Return how many prompts are a shard."""
        return self._task.runtime.models[0].device.batch or BATCH

    def compute(self, names: Sequence[str], progress: Progress) -> Result:
        """Compare the two on the answers of a shard; return a table of steps for each."""
        measured = {}
        for some in self._groups(names):
            for name, found in zip(some, self._compared(some), strict=True):
                measured[name] = found
                progress(len(self._answers[name]))
        schema = schema_with(measured[names[0]])
        return {}, [columns.steps_table(name, found, schema) for name, found in measured.items()]

    def _groups(self, names: Sequence[str]) -> list[Sequence[str]]:
        """Return the texts of a shard in groups that are read together."""
        longest = max(len(self._answers[name]) for name in names)
        rows = (2 + self._depths) * longest  # of the target, of each depth, and of q'
        most = min(TOGETHER[self.target.device.type], LOGITS // (rows * self._rows))
        size = max(1, most)
        return [names[at : at + size] for at in range(0, len(names), size)]

    def _compared(self, names: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
        """Yield the columns of each text; several are read together, padded before the prompt."""
        import torch

        from pipeline.drafters.pairs import read_pairs

        texts = [[*self._prompts[name], *self._answers[name][:-1]] for name in names]
        width = max(map(len, texts))
        padded = [[0] * (width - len(text)) + text for text in texts]
        ids = torch.tensor(padded, device=self.target.device)
        padding = None
        if len(texts) > 1:
            before = [width - len(text) for text in texts]
            padding = torch.tensor(before, device=self.target.device)
        keep = max(len(self._answers[name]) for name in names)
        logits, drafts, completed = read_pairs(
            self.target, self.drafter, ids, keep, self._depths, padding
        )
        for row, name in enumerate(names):
            part = slice(-len(self._answers[name]), None), slice(self._rows)
            of_drafts = [draft[row][part] for draft in drafts]
            rest = None if completed is None else completed[row][part]
            yield self._columns(name, logits[row][part], of_drafts, rest)

    def _columns(
        self, name: str, target: Tensor, drafts: Sequence[Tensor], completed: Tensor | None
    ) -> dict[str, np.ndarray]:
        """Return the columns of an answer from logits (n, V) of both models."""
        from pipeline.models.logit_comparison import compare_logits
        from pipeline.models.logit_statistics import logit_statistics

        of_drafter = logit_statistics(drafts[0], min(DRAFT_K, self._rows), self._temperature)
        found = logit_statistics(target, self._k, self._temperature)
        found |= {f"draft_{column}": values for column, values in of_drafter.items()}
        broken = (~(found["entropy"] + found["draft_entropy"]).isfinite()).nonzero()
        if len(broken):
            raise PipelineError(
                f"{self._task.runtime.pair}: NaN or infinite logits for prompt {name} at step "
                f"{int(broken[0])}: try dtype: float32 or attention: eager for both"
            )
        found |= compare_logits(target, drafts, self._temperature, self._sampled, completed)
        measured = {column: values.cpu().numpy() for column, values in found.items()}
        return measured | {"token_id": np.array(self._answers[name])}

    def metadata(self, _: Sequence[Json]) -> Json:
        """Return the record's metadata on the pair and the run."""
        from pipeline.models.devices import describe_device, peak_memory
        from pipeline.models.recorded_passes import can_record

        found: Json = {
            "vocab_size": self._rows,
            "k": self._k,
            "certified_temperature": self._temperature,
            "sampled_temperature": self._sampled,
            **describe_device(self.target.device),
            "recorded_passes": can_record(self.target),
            "peak_memory_bytes": peak_memory(self.target.device),
        }
        if isinstance(self.drafter, Eagle3Head):  # it runs in the dtypes of its target
            entries = self._task.settings["target"]
            found["drafter"] = {name: entries[name] for name in ("dtype", "head_dtype")}
            found["completed"] = self.drafter.model.drafted is not None  # there is full_kl
        return found


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
