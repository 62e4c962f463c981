"""Read the stored distributions of an artifact as `analysis.topk.TopK`.

Those of stages distributions and drafts are at the temperature of the certificates. One that was
read from an engine's log has log-probabilities in the place of raw logits, and their error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from analysis.statistics.bootstrap import PromptBootstrap, Resampling
from analysis.statistics.trajectories import Trajectories
from analysis.topk import TopK
from pipeline.core.columns import numbers
from pipeline.core.stage import Artifact, Json, Task
from pipeline.engines.logs import prompts_of

if TYPE_CHECKING:
    import pyarrow as pa

    from analysis.acceptance.judgement import Steps
    from analysis.decoding.call_costs import PositionCounts
    from analysis.topk import Floats

ROWS = 8192  # of a chunk
FLOAT32 = 2.0**-24  # its rounding, relative
TOKENS = ("top_ids", "top_logits")  # raw
DRAFTED = ("kl", "draft_rank", "draft_log_prob", "argmax_rank")  # in the order of Steps
MOMENTS = ("top_surprisal", "log_tail", "entropy")  # as TopK takes them, behind TOKENS


def read_token_ids(prompts: Artifact) -> dict[str, list[int]]:
    """Return the tokens of every prompt of an artifact of stage prompts."""
    table = prompts.read(columns=["prompt_id", "token_ids"]).to_pydict()
    return dict(zip(table["prompt_id"], table["token_ids"], strict=True))


def read_position_counts(acceptance: Artifact) -> dict[str, PositionCounts]:
    """Read how often each position of a draft was tested and accepted, by the label of the rule."""
    from analysis.decoding.call_costs import LONGEST, PositionCounts

    table = acceptance.read("positions").to_pandas()
    counts = {}
    for rule, rows in table.groupby("rule", sort=False):
        tested, accepted = (
            rows[name].to_numpy().reshape(-1, LONGEST) for name in ("tested", "accepted")
        )
        counts[str(rule)] = PositionCounts(tested, accepted, tested[:, 0], tested[:, 0])
    return counts


def chunks(artifact: Artifact, rows: int = ROWS) -> Iterator[tuple[pa.RecordBatch, TopK]]:
    """Stream an artifact as (prompt_id and position, distributions), `rows` steps at a time."""
    for batch in artifact.batches(["prompt_id", "position", *TOKENS, *MOMENTS], rows):
        yield batch.select(["prompt_id", "position"]), as_top_k(batch, artifact.metadata)


def read_distributions(artifact: Artifact) -> TopK:
    """Read all steps of an artifact at once, a column after the other to save memory."""
    import pyarrow as pa

    names = [*TOKENS, *MOMENTS]
    arrays = [artifact.read(columns=[name])[name].combine_chunks() for name in names]
    return as_top_k(pa.record_batch(arrays, names=names), artifact.metadata)


def resampled(
    steps: pa.Table, distributions: Task, statistics: Resampling
) -> tuple[Trajectories, PromptBootstrap]:
    """Return the trajectories of steps (prompt_id, position), and resamples of their prompts.

    Of an engine's log the pieces of an answer, and the choices of a prompt, stay together.
    """
    trajectories = Trajectories.from_positions(numbers(steps["position"]))
    prompt_of_answer = None
    if "log" in distributions.settings:
        prompts = prompts_of(steps["prompt_id"].take(trajectories.starts).to_pylist())
        number = {prompt: at for at, prompt in enumerate(dict.fromkeys(prompts))}
        prompt_of_answer = np.array([number[prompt] for prompt in prompts])
    bootstrap = PromptBootstrap(trajectories.answer_index, *statistics, prompt_of_answer)
    return trajectories, bootstrap


def read_steps(artifact: Artifact) -> Steps:
    """Read a drafter beside its target, at every depth, of an artifact of stage drafts."""
    from analysis.acceptance.judgement import Steps

    target = read_distributions(artifact)
    table = artifact.read(columns=["position", *(f"depth_{name}" for name in DRAFTED)])
    position = numbers(table["position"])
    values = [np.ascontiguousarray(numbers(column).T) for column in table.columns[1:]]

    def steps(depth: int, kl: Floats, deeper: Sequence[Steps] = ()) -> Steps:
        rank, log_prob, argmax_rank = (of[depth] for of in values[1:])
        return Steps(target, position, kl, rank, log_prob, argmax_rank, deeper)

    kl = values[0]  # (depths, N)
    deeper = [steps(depth, kl[depth]) for depth in range(1, len(kl))]
    return steps(0, drafted_kl(artifact), deeper)


def drafted_kl(artifact: Artifact) -> Floats:
    """Return KL(p||q) at the first depth of every step of stage drafts; that of a completed q'."""
    if not artifact.metadata.get("completed"):
        return numbers(artifact.read(columns=["kl"])["kl"])
    table = artifact.read(columns=["full_kl", "argmax_rank"])
    full_kl, argmax_rank = map(numbers, table.columns)
    # a tree can accept no argmax that the head lacks, which ranks behind all tokens
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
    """Return an engine's logged steps; behind the first token values were rounded to float32."""
    values = numbers(batch.column("top_logits")).astype(np.float64)
    values[:, 0] = -numbers(batch.column("top_surprisal"))
    finite = np.where(np.isfinite(values), values, 0.0)
    off = error + FLOAT32 * np.abs(finite)
    off[:, 0] = error
    values = np.minimum(values, values[:, :1])
    return TopK.from_log_probs(numbers(batch.column("top_ids")), values, off, vocab_size)
