"""The tables of stage decoding, with the meaning of every column."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.core.columns import COMMON, GIVEN_UP, METHOD, STEP, Column, Columns

RUN: Columns = {
    "prompt_id": Column("string", "the prompt"),
    "run": Column("int32", 'the method: index in the record\'s `facts["runs"]`'),
}
CALL: Columns = {  # a target call after the prompt's
    "drafted": Column("int32", "tokens"),
    "depth": Column("int32", "drafted tokens in a row: of a chain all of them"),
}
SECONDS: Columns = {
    "draft_seconds": Column("float64", "drafting"),
    "verify_seconds": Column("float64", "the target's pass"),
    "other_seconds": Column("float64", "acceptance, roll-back, bookkeeping"),
}
TABLES: Mapping[str, Columns] = {
    "data": RUN
    | {"source": Column("string", "of the prompt")}
    | METHOD
    | {
        "token_ids": Column("list<int32>", "the answer"),
        "n_tokens": Column("int32", "its length"),
        "text_tokens": Column("int32", "of prompt and answer"),
        "ended": Column("bool", "by the model, not by the limit"),
        **GIVEN_UP,
        "agreement": Column("float64", "share of positions with the baseline's token"),
        **COMMON,
    },
    "calls": RUN
    | {"position": Column("int32", "in the answer, of the first drafted token")}
    | CALL
    | {
        "reach": Column("int32", "of depth, the tokens before one that would end the answer"),
        "tested": Column("int32", "tokens before and at the first rejection; of a tree, levels"),
        "accepted": Column("int32", "drafted tokens that were accepted"),
        "emitted": Column("int32", "tokens"),
    },
    "levels": RUN
    | {
        "position": Column("int32", "of the call"),
        "level": Column("int32", "of the tree, from 1"),
        "children": Column("int32", "that were tested"),
        "accepted": Column("int32", "sibling index of the accepted child, from 1; 0: none"),
    },
    "trajectory": STEP
    | {
        "token_id": Column("int32", "the token emitted"),
        "draft_token_id": Column("int32", "the drafter's argmax"),
        "draft_rank": Column("int32", "its rank under p, from 1"),
        "draft_log_prob": Column("float64", "its log-probability under p"),
        "z1": Column("float64", "the target's largest logit"),
        "z2": Column("float64", "the second largest"),
        "top_surprisal": Column("float64", "-log p of rank 1"),
    },
    "contexts": RUN
    | {
        "position": Column("int32", "in the baseline's answer"),
        "kl": Column("float64", "KL(p‖q) at the temperature, nats; inf where q lacks a token"),
        "greedy_entropy": Column("float64", "H[R] of speculative sampling, drafts independent"),
        "races_entropy": Column("float64", "H[R] of exponential races, drafts independent"),
    },
    "lengths": {  # of chains under strict greedy, by drafters that read the text only
        "prompt_id": Column("string", "the prompt"),
        "drafter": Column("string", "its kind"),
        "draft_length": Column("int32", "tokens of a draft"),
        "calls": Column("int32", "that the answer of the target alone takes, after prefill"),
        "drafting": Column("int32", "calls that draft anything"),
        "tokens": Column("int32", "that the calls give"),
    },
    "failures": {
        "prompt_id": Column("string", "the prompt"),
        "reason": Column("string", "why it has no answer"),
    },
    "timings/runs": RUN
    | {
        "first_seconds": Column("float64", "until the first token"),
        "begin_seconds": Column("float64", "the drafter's pass over the prompt"),
        "seconds": Column("float64", "of the whole answer"),
        "processor_seconds": Column("float64", "of the decoding thread; null on CUDA"),
        "peak_bytes": Column("int64", "of a CUDA device, null elsewhere"),
    },
    "timings/calls": RUN | CALL | {"emitted": Column("int32", "tokens"), **SECONDS},
    "timings/passes": {  # calls of all draft lengths, of no method
        "prompt_id": Column("string", "the prompt"),
        "drafted": Column("int32", "tokens, verified in a pass over one more"),
        **SECONDS,
        "begin_seconds": Column("float64", "the drafter's pass over the prompt, once an answer"),
    },
}
