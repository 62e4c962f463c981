"""The schema and unit of every column of every artifact.

Units: token ids are indices of the vocabulary, logits are raw, everything else is in nats or
a probability. `K` is the number of stored top tokens.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from pipeline.errors import PipelineError

IDS, LOGITS = pa.list_(pa.int32()), pa.list_(pa.float32())  # fixed-size lists of K when written

STEP = {"prompt_id": pa.string(), "position": pa.int32()}
TARGET = {
    "top_ids": IDS,
    "top_logits": LOGITS,
    "logsumexp": pa.float64(),
    "top_surprisal": pa.float64(),  # -log p of rank 1: what probabilities are computed from
    "log_tail": pa.float64(),
    "entropy": pa.float64(),
}
PAIR = {  # target p against drafter q over the full vocabulary, analysis.acceptance.divergences
    "kl": pa.float64(),  # KL(p||q)
    "reverse_kl": pa.float64(),  # KL(q||p)
    "tv": pa.float64(),
    "draft_token_id": pa.int32(),  # the drafter's argmax
    "draft_rank": pa.int32(),  # its rank under p, from 1
    "draft_log_prob": pa.float64(),  # log p of it
    "argmax_rank": pa.int32(),  # rank of p's argmax under q, from 1
    "draft_entropy": pa.float64(),
    "erss_acceptance": pa.float64(),  # probability: exponential races accept the first draft
    "harmonic_mean": pa.float64(),  # its lower bound
    # at the temperature the answers were sampled at; NaN where they were not, or from a part of p
    "sampled_tv": pa.float64(),
    "sampled_erss_acceptance": pa.float64(),
    "sampled_harmonic_mean": pa.float64(),
    "sampled_draft_prob": pa.float64(),  # p of the drafter's argmax
}
DRAFT = {  # of the drafter's own distribution, with draft_entropy, so that kl and tv can be checked
    "draft_top_ids": IDS,
    "draft_top_logits": LOGITS,
    "draft_top_surprisal": pa.float64(),
    "draft_log_tail": pa.float64(),
}
RUN = {"prompt_id": pa.string(), "run": pa.int32()}  # run: index in the record's facts["runs"]
COUNTED = {  # beside intervals
    "prompts": pa.int32(),
    "few_prompts": pa.bool_(),  # too few to trust them, analysis.statistics.bootstrap.FEW_PROMPTS
}
SCHEMAS: dict[tuple[str, str], dict[str, pa.DataType]] = {
    ("prompts", "data"): {
        "prompt_id": pa.string(),
        "source": pa.string(),
        "source_row": pa.int64(),
        "text": pa.string(),
        "later_turns": pa.list_(pa.string()),  # of the user, after the answer to text
        "token_ids": pa.list_(pa.int32()),
        "n_tokens": pa.int32(),
    },
    ("distributions", "data"): STEP | {"token_id": pa.int32()} | TARGET,
    ("certificates", "data"): STEP
    | {
        "lo": pa.float64(),
        "hi": pa.float64(),
        "active_size": pa.int32(),
        "accepted_count": pa.int32(),
    },
    ("drafts", "data"): STEP | {"token_id": pa.int32()} | TARGET | PAIR | DRAFT,
    ("decoding", "data"): RUN
    | {  # one row a decoded answer
        "source": pa.string(),
        "method": pa.string(),
        "drafter": pa.string(),  # model, prompt_lookup or none
        "draft_length": pa.int32(),
        "temperature": pa.float64(),
        "token_ids": pa.list_(pa.int32()),
        "n_tokens": pa.int32(),
        "text_tokens": pa.int32(),  # of prompt and answer
        "ended": pa.bool_(),  # by the model, not by the limit
        "log_likelihood": pa.float64(),  # of the answer under the target at temperature 1
        "agreement": pa.float64(),  # share of positions with the token of the baseline
        "common_prefix": pa.int32(),  # tokens before the first that differs from the baseline's
    },
    ("decoding", "calls"): RUN
    | {  # one row a target call after the prompt's
        "position": pa.int32(),  # in the answer, of the first drafted token
        "drafted": pa.int32(),
        "reach": pa.int32(),  # of them, those before one that would end the answer
        "tested": pa.int32(),
        "accepted": pa.int32(),
        "emitted": pa.int32(),
    },
    ("decoding", "trajectory"): STEP
    | {  # the greedy baseline, read again by both models
        "token_id": pa.int32(),
        "draft_token_id": pa.int32(),
        "draft_rank": pa.int32(),
        "draft_log_prob": pa.float64(),
        "z1": pa.float64(),
        "z2": pa.float64(),
        "top_surprisal": pa.float64(),
    },
    ("decoding", "indicators"): STEP
    | {  # whether a rule accepts the drafter's token there
        "rule": pa.string(),
        "accepted": pa.bool_(),
    },
    ("decoding", "failures"): {"prompt_id": pa.string(), "reason": pa.string()},
    ("decoding", "timings/runs"): RUN
    | {  # seconds
        "first_seconds": pa.float64(),  # until the first token
        "begin_seconds": pa.float64(),  # the drafter's pass over the prompt
        "seconds": pa.float64(),  # all of it
        "peak_bytes": pa.int64(),  # of a CUDA device, null elsewhere
    },
    ("decoding", "timings/calls"): RUN
    | {
        "drafted": pa.int32(),
        "emitted": pa.int32(),
        "draft_seconds": pa.float64(),
        "verify_seconds": pa.float64(),  # the target's pass
        "other_seconds": pa.float64(),
    },
    ("drafts", "tokens"): {"token_id": pa.int32(), "text": pa.string()},
    ("acceptance", "data"): STEP
    | {
        "rule": pa.string(),
        "lo": pa.float64(),
        "hi": pa.float64(),
        "accepted": pa.bool_(),
        "certified": pa.bool_(),  # kl below lo by more than rounding
    },
    ("acceptance", "listing"): {  # what the rules are there for
        "group": pa.string(),  # criteria, preset, dial or baseline
        "name": pa.string(),  # of the preset or dial, else empty
        "parameter": pa.string(),  # that a dial turns, else empty
        "setting": pa.float64(),  # its value, else null
        "rule": pa.string(),
    },
    ("acceptance", "statistics"): {  # analysis.acceptance.realised.rule_statistics
        "rule": pa.string(),
        "statistic": pa.string(),
        "value": pa.float64(),
        "optimistic": pa.float64(),
        "low": pa.float64(),
        "high": pa.float64(),
        "cut": pa.float64(),  # of lengths: share of segments that trajectories' ends cut
        "cut_optimistic": pa.float64(),
        **COUNTED,
    },
    ("acceptance", "profile"): {
        "rule": pa.string(),
        "by": pa.string(),  # position or margin
        "bin": pa.int32(),
        "low": pa.float64(),
        "high": pa.float64(),
        "steps": pa.int64(),
        "accepted": pa.float64(),
        "certified": pa.float64(),
    },
    ("acceptance", "needed"): {
        "rule": pa.string(),
        "fraction": pa.float64(),  # of steps certified
        "value": pa.float64(),  # a KL below it suffices, nats; from lo
        "optimistic": pa.float64(),  # from hi
        "low": pa.float64(),
        "high": pa.float64(),
        **COUNTED,
    },
    ("acceptance", "reached"): {  # the strictest setting of a dial with the wanted length
        "dial": pa.string(),
        "parameter": pa.string(),
        "kind": pa.string(),  # realised or certified
        "wanted": pa.float64(),
        "value": pa.float64(),  # null where no setting reaches it
        "length": pa.float64(),  # estimator long_run
        "optimistic": pa.float64(),  # from hi
        "optimistic_length": pa.float64(),
        "empty": pa.float64(),  # share of steps that reject nothing, at value
    },
    ("run_lengths", "data"): {
        "rule": pa.string(),
        "eps": pa.float64(),
        "estimator": pa.string(),
        "value": pa.float64(),  # tokens, from lo; null where not defined
        "optimistic": pa.float64(),  # from hi
        "low": pa.float64(),
        "high": pa.float64(),
        "cut": pa.float64(),  # share of segments that trajectories' ends cut, under lo
        "cut_optimistic": pa.float64(),  # under hi
        "failures": pa.int64(),
        "failing_prompts": pa.int32(),
        **COUNTED,
        "steps": pa.int64(),
    },
}


def schema(
    stage: str, name: str = "data", k: int | None = None, draft_k: int | None = None
) -> pa.Schema:
    """Return the Arrow schema of a file.

    `k` fixes the length of the lists of the target's top K, `draft_k` of the drafter's.
    """
    lengths = {"top_ids": k, "top_logits": k}
    lengths |= {"draft_top_ids": draft_k, "draft_top_logits": draft_k}
    fields = []
    for column, kind in SCHEMAS[stage, name].items():
        length = lengths.get(column)
        fields.append(
            pa.field(column, kind if length is None else pa.list_(kind.value_type, length))
        )
    return pa.schema(fields)


def check(stage: str, name: str, found: pa.Schema, path: Path) -> None:
    """Check that a file has exactly the columns and types its stage writes.

    Raises:
        PipelineError: a column is missing, unknown or of another type.
    """
    if (stage, name) not in SCHEMAS:
        return
    wanted = SCHEMAS[stage, name]
    if found.names != list(wanted):
        raise PipelineError(f"{path} has the columns {found.names}, expected {list(wanted)}")
    for column, kind in wanted.items():
        actual = found.field(column).type
        if pa.types.is_fixed_size_list(actual):
            actual = pa.list_(actual.value_type)
        if actual != kind:
            raise PipelineError(f"{path}: column {column} is {actual}, expected {kind}")
