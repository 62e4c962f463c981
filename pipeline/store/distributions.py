"""Read the stored distributions of an artifact as `analysis.topk.TopK`, at any stored temperature.

An artifact of stage distributions has them at 1, in its plain columns, and at each of the
temperatures of its facts, in lists. One of stage drafts has them at the one of its facts. One that
was read from an engine's log has log-probabilities in the place of raw logits, and their error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from analysis.rules.readings import ALGORITHM_1
from analysis.topk import TopK
from analysis.trees.acceptance import Stored, aligned, drawn_rates, greedy_rates, truncated
from analysis.trees.topology import Floats
from pipeline.errors import PipelineError
from pipeline.plan.method import RACES, Method
from pipeline.store.artifacts import Artifact
from pipeline.store.columns import TEMPERED, numbers
from pipeline.store.hub import cached_commit, hub_files
from pipeline.store.identity import HUB_ID, local_path
from pipeline.store.node import Node

if TYPE_CHECKING:
    from analysis.acceptance.judgement import Steps

TOKENIZER = "tokenizer.json"
ENGINES_IDS = "the engine's"  # token ids of a log, else they number its texts
ROWS = 8192  # of a chunk
STEPS = 4096  # of a text, at most, of which rates of siblings are computed: evenly spread over it
FLOAT32 = 2.0**-24  # its rounding, relative
TOKENS = ("top_ids", "top_logits")  # raw, at any temperature
DRAFTED = ("kl", "draft_rank", "draft_log_prob", "argmax_rank")  # in the order of Steps
MOMENTS = ("top_surprisal", "log_tail", "entropy")  # as TopK takes them, behind TOKENS


def read_token_ids(prompts: Artifact) -> dict[str, list[int]]:
    """Return the tokens of every prompt of an artifact of stage prompts."""
    table = prompts.read(columns=["prompt_id", "token_ids"]).to_pydict()
    return dict(zip(table["prompt_id"], table["token_ids"], strict=True))


def chunks(
    artifact: Artifact, temperature: float, rows: int = ROWS
) -> Iterator[tuple[pa.RecordBatch, TopK]]:
    """Stream an artifact as (prompt_id and position, distributions), `rows` steps at a time.

    Raises:
        PipelineError: it has no distributions at this temperature.
    """
    columns, at = _columns(artifact, temperature)
    facts = artifact.record["facts"]
    for batch in artifact.batches(["prompt_id", "position", *TOKENS, *columns], rows):
        yield (
            batch.select(["prompt_id", "position"]),
            as_top_k(batch, columns, at, facts, temperature),
        )


def read_distributions(artifact: Artifact, temperature: float) -> TopK:
    """Read all steps of an artifact at once.

    Raises:
        PipelineError: it has no distributions at this temperature.
    """
    columns, at = _columns(artifact, temperature)
    table = artifact.read(columns=[*TOKENS, *columns]).combine_chunks()
    facts = artifact.record["facts"]
    return as_top_k(table.to_batches()[0], columns, at, facts, temperature)


def read_steps(artifact: Artifact) -> Steps:
    """Read a drafter beside its target, at every depth, of an artifact of stage drafts.

    Of a head with a reduced vocabulary the first depth has the KL to its completed q'.
    """
    from analysis.acceptance.judgement import Steps

    target = read_distributions(artifact, artifact.record["facts"]["temperature"])
    table = artifact.read(columns=["position", *DRAFTED, *(f"depth_{name}" for name in DRAFTED)])
    position = table["position"].to_numpy()
    lists = [numbers(table[f"depth_{name}"]) for name in DRAFTED]  # (N, depths) each
    deeper: list[Steps] = []
    for depth in range(1, lists[0].shape[1]):
        kl, rank, log_prob, argmax_rank = (values[:, depth] for values in lists)
        deeper.append(Steps(target, position, kl, rank, log_prob, argmax_rank))
    kl, rank, log_prob, argmax_rank = (table[name].to_numpy() for name in DRAFTED)
    if "completed" in artifact.record["facts"]:
        full_kl = artifact.read(columns=["full_kl"])["full_kl"].to_numpy()
        # a tree can accept no argmax that the head lacks, which ranks behind all tokens
        kl = np.where(argmax_rank == target.vocab_size, np.inf, full_kl)
    return Steps(target, position, kl, rank, log_prob, argmax_rank, deeper)


def stored_temperatures(artifact: Artifact) -> list[float]:
    """Return the temperatures at which an artifact has distributions, increasing."""
    facts = artifact.record["facts"]
    plain = facts.get("temperature", 1.0)
    return sorted([plain, *facts.get("temperatures", [])])


def read_top_probabilities(artifact: Artifact, temperature: float) -> np.ndarray:
    """Read the (N,) probability of the most probable token of every step.

    Raises:
        PipelineError: the artifact has no distributions at this temperature.
    """
    columns, at = _columns(artifact, temperature)
    batch = artifact.read(columns=[columns[0]]).combine_chunks().to_batches()[0]
    return np.exp(-_column(batch, columns[0], at))


def _columns(artifact: Artifact, temperature: float) -> tuple[Sequence[str], int | None]:
    """Return the columns of the moments at a temperature, and the place in their lists, if any."""
    facts = artifact.record["facts"]
    if temperature == facts.get("temperature", 1.0):
        return MOMENTS, None
    if temperature not in facts.get("temperatures", []):
        known = ", ".join(f"{stored:g}" for stored in stored_temperatures(artifact))
        raise PipelineError(
            f"{artifact.directory} has no distributions at temperature {temperature:g}, only at "
            f"{known}: list it in distributions.temperatures"
        )
    return tuple(TEMPERED), facts["temperatures"].index(temperature)


def as_top_k(
    batch: pa.RecordBatch,
    columns: Sequence[str],
    at: int | None,
    facts: Mapping[str, Any],
    temperature: float,
) -> TopK:
    """Return the distributions of a batch of rows, without copying the lists of tokens."""
    vocab_size = facts["vocab_size"]
    if "log_prob_error" in facts:
        return _as_logged(batch, vocab_size, facts["log_prob_error"])
    return TopK.from_columns(
        **{name: numbers(batch.column(name)) for name in TOKENS},
        **dict(zip(MOMENTS, (_column(batch, name, at) for name in columns), strict=True)),
        vocab_size=vocab_size,
        temperature=temperature,
    )


def _as_logged(batch: pa.RecordBatch, vocab_size: int, error: float) -> TopK:
    """Return what an engine logged: its log-probabilities stand where raw logits do.

    Those behind the first were rounded to float32 once more when they were stored.
    """
    values = numbers(batch.column("top_logits")).astype(np.float64)
    values[:, 0] = -numbers(batch.column("top_surprisal"))
    finite = np.where(np.isfinite(values), values, 0.0)
    off = error + FLOAT32 * np.abs(finite)
    off[:, 0] = error
    values = np.minimum(values, values[:, :1])
    return TopK.from_log_probs(numbers(batch.column("top_ids")), values, off, vocab_size)


def _column(batch: pa.RecordBatch, name: str, at: int | None) -> np.ndarray:
    found = numbers(batch.column(name))
    return found if at is None else found[:, at]


def sibling_rates(artifact: Artifact, method: Method, count: int) -> Floats:
    """Return (count,) R(1), R(2), ... of the drafts of `method` on the text of stage drafts."""
    if method.temperature == 0 or method.reading == ALGORITHM_1:
        ranks = artifact.read(columns=["argmax_rank"])["argmax_rank"].to_numpy()
        return greedy_rates(ranks, count)
    _, *pair = stored_pair(artifact, STEPS, method.temperature)
    p, q = aligned(*(truncated(one, method.top_p, method.top_k) for one in pair))
    if method.drafts_most_probable:  # the drafter's tokens come first, by decreasing q
        found = p[:, : min(count, pair[1][0].shape[1])].mean(axis=0)
    else:
        times = np.random.default_rng(0).exponential(size=p.shape)
        found = drawn_rates(p, q, times, count, method.sampling == RACES) / len(p)
    return np.pad(found, (0, count - len(found)))


def stored_pair(
    artifact: Artifact, most: int, temperature: float
) -> tuple[NDArray[np.intp], Stored, Stored]:
    """Return steps of the text, evenly spread, and what is stored there of target and draft."""
    facts = artifact.record["facts"]
    names = (*TOKENS, *MOMENTS[:2])
    table = artifact.read(columns=[*names, *(f"draft_{name}" for name in names)])
    steps = np.unique(np.linspace(0, len(table) - 1, most).astype(np.intp))
    table = table.take(pa.array(steps))
    target, draft = (
        _stored(table, prefix, facts["vocab_size"], facts["temperature"], temperature)
        for prefix in ("", "draft_")
    )
    return steps, target, draft


def _stored(table: pa.Table, prefix: str, size: int, known_at: float, temperature: float) -> Stored:
    """Return the stored tokens of a model at a temperature.

    What lies outside is known at the temperature of the artifact. At another the unstored tokens
    are taken to be equally probable, which makes them a little too improbable where it is lower.
    """
    ids, logits, surprisal, log_tail = (
        numbers(table[prefix + name]) for name in (*TOKENS, *MOMENTS[:2])
    )
    below = logits.astype(np.float64) - logits[:, :1]
    others = size - ids.shape[1]
    if others == 0:
        return ids, np.exp(below / temperature), np.zeros(len(ids))
    each = known_at * (log_tail + surprisal - np.log(others))  # its logit, less the largest
    tail = others * np.exp(np.minimum(each, below[:, -1]) / temperature)
    return ids, np.exp(below / temperature), tail


def words(
    node: Node, dump: Artifact, drafts: Artifact | None, ids: Iterable[int]
) -> dict[int, str]:
    """Return the text of tokens by id, of those that are known.

    The target's tokenizer knows them all. Where it is not at hand any more, what the artifacts
    stored of the emitted tokens is taken.

    Args:
        node: of the target's distributions.
        dump: its artifact.
        drafts: that of stage drafts, where there is a drafter.
        ids: of the tokens.
    """
    wanted = sorted(set(ids))
    file = _tokenizer(node, dump.record["facts"])
    if file is not None:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(file))
        texts = tokenizer.decode_batch([[token] for token in wanted], skip_special_tokens=False)
        return dict(zip(wanted, texts, strict=True))
    for artifact in (dump, drafts):
        if artifact is not None and "tokens.parquet" in artifact.record["files"]:
            known = artifact.read("tokens").to_pydict()
            stored = dict(zip(known["token_id"], known["text"], strict=True))
            return {token: stored[token] for token in wanted if token in stored}
    return {}


def _tokenizer(node: Node, facts: Mapping[str, Any]) -> Path | None:
    """Return the file of a target's tokenizer; None where it has none, or is not at hand.

    The model that an engine's log names may be a directory, or lie in the hub's cache.
    """
    path, commit = node.settings.get("path"), node.config.get("model", {}).get("commit")
    if "log" in node.config:
        path = facts["model"] if facts["token_ids"] == ENGINES_IDS else None
        commit = cached_commit(path, None, "model") if path and HUB_ID.fullmatch(path) else None
    if path is None:
        return None
    try:
        place = local_path(path)
        if place is None:
            place = hub_files(path, commit, [TOKENIZER], "target") if commit else Path(path)
    except PipelineError:
        return None
    file = place / TOKENIZER
    return file if file.is_file() else None
