"""Reads the distributions, steps and calls that artifacts hold, as `analysis` takes them.

Distributions of stages distributions and drafts are at the temperature of the certificates. Those
from an engine's log have log-probabilities instead of raw logits, and their largest error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.statistics.bootstrap import PromptBootstrap, Resampling
from analysis.statistics.trajectories import Trajectories
from analysis.topk import PART, TopK
from pipeline.core.columns import numbers
from pipeline.core.stage import Artifact, Json, Task
from pipeline.engines.answers.logs import prompts_of

if TYPE_CHECKING:
    import pyarrow as pa

    from analysis.acceptance.judgement import Steps
    from analysis.decoding.predicted_speed import CallsByLength
    from analysis.topk import Flags, Floats, Indices

MAX_HELD = 2**25  # stored tokens of the steps that are kept in memory, 0.3 GB
FLOAT32_ROUNDING = 2.0**-24  # relative
TOKENS = ("top_ids", "top_logits")  # raw
DRAFTED = ("kl", "draft_rank", "draft_log_prob", "argmax_rank")  # in the order of `Steps`
MOMENTS = ("top_surprisal", "log_tail", "entropy")  # as `TopK` takes them, after TOKENS


def read_token_ids(prompts: Artifact) -> dict[str, list[int]]:
    """Return the tokens of every prompt, by its id, from an artifact of stage prompts."""
    table = prompts.read(columns=["prompt_id", "token_ids"]).to_pydict()
    return dict(zip(table["prompt_id"], table["token_ids"], strict=True))


def read_calls_by_length(acceptance: Artifact) -> dict[str, CallsByLength]:
    """Return the calls of the answers at each draft length, by the label of the rule."""
    from analysis.decoding.predicted_speed import CallsByLength

    table = acceptance.read("lengths").to_pandas()
    by_rule = table.groupby("rule", sort=False)
    return {str(rule): CallsByLength.read(rows) for rule, rows in by_rule}


def chunks(artifact: Artifact, rows: int = PART) -> Iterator[tuple[pa.RecordBatch, TopK]]:
    """Yield prompt_id and position, and the distributions, of at most `rows` steps at a time."""
    for batch in artifact.batches(["prompt_id", "position", *TOKENS, *MOMENTS], rows):
        yield batch.select(["prompt_id", "position"]), as_top_k(batch, artifact.metadata)


def read_distributions(artifact: Artifact) -> TopK:
    """Read the distributions of all steps, one column after the other to save memory."""
    import pyarrow as pa

    names = [*TOKENS, *MOMENTS]
    arrays = [artifact.read(columns=[name])[name].combine_chunks() for name in names]
    return as_top_k(pa.record_batch(arrays, names=names), artifact.metadata)


class StoredDistributions:
    """The distributions of an artifact, read from its file part by part.

    If few steps are asked for, they are kept in memory: a search asks for fewer and fewer of them.

    Attributes:
        k: K, the number of stored tokens of a step.
    """

    def __init__(self, artifact: Artifact) -> None:
        """Open an artifact; its distributions are read later."""
        self.k = int(artifact.metadata["k"])
        self._artifact = artifact
        with artifact.open("data") as file:
            groups = [
                file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)
            ]
        self._ends = np.cumsum(groups, dtype=np.intp)
        self._is_held: Flags = np.zeros(len(self), dtype=bool)
        self._held: TopK | None = None

    def __len__(self) -> int:
        return int(self._ends[-1])

    @cached_property
    def top_probability(self) -> Floats:
        """(N,) p0, the probability of the argmax; a rounded log-probability above 0 counts as 0."""
        surprisal = numbers(self._artifact.read(columns=["top_surprisal"])["top_surprisal"])
        return np.exp(-np.maximum(surprisal, 0.0))

    def parts(self, wanted: Flags | None = None) -> Iterator[tuple[Indices, TopK]]:
        """Yield indices and distributions of the `wanted` (N,) steps, or of all, in order."""
        if wanted is None:
            wanted = np.ones(len(self), dtype=bool)
        self._hold(wanted)
        if self._held is None or (wanted & ~self._is_held).any():
            yield from self._read(wanted)
            return
        steps = np.flatnonzero(wanted)
        places = np.flatnonzero(wanted[self._is_held])
        for begin in range(0, len(steps), PART):
            part = slice(begin, begin + PART)
            yield steps[part], self._held[places[part]]

    def _hold(self, wanted: Flags) -> None:
        """Keep the wanted steps in memory unless they are too many; all steps if these are few."""
        most = MAX_HELD // self.k
        is_new = (wanted & ~self._is_held).any()
        if not is_new or np.count_nonzero(wanted) > most:
            return
        self._held = None  # frees its memory before the others are read
        self._is_held = np.ones_like(wanted) if len(self) <= most else wanted.copy()
        self._held = _joined([part for _, part in self._read(self._is_held)])

    def _read(self, wanted: Flags) -> Iterator[tuple[Indices, TopK]]:
        """Yield the wanted steps; row groups without any are not read."""
        begins = np.append(0, self._ends[:-1])
        for group, (begin, end) in enumerate(
            zip(begins.tolist(), self._ends.tolist(), strict=True)
        ):
            if not wanted[begin:end].any():
                continue
            for batch in self._artifact.batches([*TOKENS, *MOMENTS], PART, [group]):
                rows = np.flatnonzero(wanted[begin : begin + len(batch)])
                part = as_top_k(batch, self._artifact.metadata)
                if len(rows):
                    yield begin + rows, part if len(rows) == len(part) else part[rows]
                begin += len(batch)


def _joined(parts: Sequence[TopK]) -> TopK:
    """Return the steps of several parts as one."""
    columns: dict[str, Any] = {}
    for spec in fields(TopK):
        values = [getattr(part, spec.name) for part in parts]
        if isinstance(values[0], np.ndarray):
            columns[spec.name] = np.concatenate(values)
    return replace(parts[0], **columns)


def resampled(
    steps: pa.Table, distributions: Task, statistics: Resampling
) -> tuple[Trajectories, PromptBootstrap]:
    """Return the trajectories of steps (prompt_id, position), and a bootstrap over their prompts.

    In an engine's log, the pieces of an answer and the choices of a prompt are of one prompt.
    """
    trajectories = Trajectories.from_positions(numbers(steps["position"]))
    prompt_of_answer = None
    if "log" in distributions.settings:
        prompts = prompts_of(steps["prompt_id"].take(trajectories.starts).to_pylist())
        number = {prompt: index for index, prompt in enumerate(dict.fromkeys(prompts))}
        prompt_of_answer = np.array([number[prompt] for prompt in prompts])
    bootstrap = PromptBootstrap(trajectories.answer_index, *statistics, prompt_of_answer)
    return trajectories, bootstrap


def read_steps(artifact: Artifact) -> Steps:
    """Read the steps of a drafter at every depth, from an artifact of stage drafts.

    The target's distributions stay in the file, and are read part by part.
    """
    from analysis.acceptance.judgement import Steps

    target = StoredDistributions(artifact)
    table = artifact.read(columns=["position", *(f"depth_{name}" for name in DRAFTED)])
    position = numbers(table["position"])
    values = [np.ascontiguousarray(numbers(column).T) for column in table.columns[1:]]

    def steps(depth: int, kl: Floats, deeper: Sequence[Steps] = ()) -> Steps:
        rank, log_prob, argmax_rank = (by_depth[depth] for by_depth in values[1:])
        return Steps(target, position, kl, rank, log_prob, argmax_rank, deeper)

    kl = values[0]  # (depths, N)
    deeper = [steps(depth, kl[depth]) for depth in range(1, len(kl))]
    return steps(0, drafted_kl(artifact), deeper)


def drafted_kl(artifact: Artifact) -> Floats:
    """Return (N,) KL(p||q) at depth 1, nats; for a head with a reduced vocabulary that of q'."""
    if not artifact.metadata.get("completed"):
        return numbers(artifact.read(columns=["kl"])["kl"])
    table = artifact.read(columns=["full_kl", "argmax_rank"])
    full_kl, argmax_rank = map(numbers, table.columns)
    # an argmax that the head lacks ranks after all tokens, and no tree accepts it
    return np.where(argmax_rank == artifact.metadata["vocab_size"], np.inf, full_kl)


def as_top_k(batch: pa.RecordBatch, metadata: Json) -> TopK:
    """Return the distributions of a batch of rows, without copying the lists of tokens."""
    if metadata.get("log_prob_error") is not None:
        return _as_logged(batch, metadata["vocab_size"], metadata["log_prob_error"])
    return TopK.from_columns(
        **{name: numbers(batch.column(name)) for name in (*TOKENS, *MOMENTS)},
        vocab_size=metadata["vocab_size"],
        temperature=metadata["certified_temperature"],
    )


def _as_logged(batch: pa.RecordBatch, vocab_size: int, error: float) -> TopK:
    """Return the steps of an engine's log; all values but the first are stored as float32."""
    values = numbers(batch.column("top_logits")).astype(np.float64)
    values[:, 0] = -numbers(batch.column("top_surprisal"))
    finite = np.where(np.isfinite(values), values, 0.0)
    off = error + FLOAT32_ROUNDING * np.abs(finite)
    off[:, 0] = error
    values = np.minimum(values, values[:, :1])
    return TopK.from_log_probs(numbers(batch.column("top_ids")), values, off, vocab_size)
