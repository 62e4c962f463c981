"""Stage decoding: real speculative decoding, every method beside the target alone.

Run it with ``python -m pipeline stage=decoding drafter=... decoding=default``. A shard is one
prompt. The target reads it once, and the seconds of this prefill count for every method. Then the
baseline and all methods decode one after the other, so that what is compared was timed in the same
minute. Tokens, calls and nats given up are the artifact's content; seconds are kept apart in
timings/, which the content's digest leaves out. They belong to a machine: `pipeline.core.timings`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.statistics.estimate import interval_columns
from pipeline.core.columns import COMMON, GIVEN_UP, METHOD, STEP, Column, Columns
from pipeline.core.stage import Json, Stage, Task
from pipeline.core.timings import Asked, distinct
from pipeline.drafters import kind_of
from pipeline.settings.methods import (
    ALONE,
    RACES,
    SPECULATIVE,
    baseline,
    build_methods,
    method_entries,
    methods_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pipeline.core.columns import Row, Tables
    from pipeline.core.stage import Artifact, Inputs, Out
    from pipeline.core.workers import Progress, Result
    from pipeline.decoding.loop import Answer, Prefill
    from pipeline.decoding.session import DecodingSession, Prompt
    from pipeline.models.eagle3.drafter import Eagle3Drafter
    from pipeline.models.language_model import LanguageModel
    from pipeline.settings.methods import Method
    from pipeline.study import Study

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
ROUNDS = 20  # prompts at which a call of each draft length is timed


def plan(study: Study) -> list[Task]:
    """Return one planned artifact a target; none where methods lack the drafter."""
    config = study.config
    settings = study.config.decoding
    if config.distributions.source == "logs":
        return []
    methods = build_methods(settings.methods, study.decoded, settings.draft_length)
    above = study.tasks["drafts"]
    if config.drafter is None and not any(kind_of(method.drafter).has_files for method in methods):
        above = study.tasks["distributions"]
    measured = any(method.needs_drafts for method in methods)
    own = settings.model_dump(include={"steps", "seed", "lookup", "lookup_match"})
    own["prompts"] = min(settings.prompts, config.prompts.count)
    own["methods"] = [method_entries(method) for method in methods]
    tasks = []
    for task in above:
        inputs = {"prompts": task.inputs["prompts"]} | ({"drafts": task} if measured else {})
        runtime = task.runtime
        pair = {
            name: model.entries
            for name, model in zip(("target", "drafter"), runtime.models, strict=False)
        }
        asked = Asked.of(config.device)
        tasks.append(Task(STAGE, task.label, pair | own, inputs, runtime, asked))
    return tasks


def compute(task: Task, inputs: Inputs, out: Out) -> None:
    """Decode the first prompts with every method."""
    from pipeline.core.shards import compute_shards, write_tables

    write_tables(task, out, compute_shards(task, inputs, out, None, DecodingWorker), "prompt")
    out.metadata["failed_prompts"] = out.rows["failures"]


def first_prompts(prompts: Artifact, count: int) -> list[Prompt]:
    """Return the first prompts."""
    from pipeline.decoding.session import Prompt

    rows = prompts.read(columns=["prompt_id", "token_ids", "source"]).slice(0, count).to_pylist()
    return [Prompt(**row) for row in rows]


class DecodingWorker:
    """A target and its drafter, with all methods; see `pipeline.core.workers.Worker`."""

    def __init__(self, task: Task, inputs: Inputs) -> None:
        from pipeline.decoding.session import load_session, warm_up
        from pipeline.drafters.pairs import pair_tokenizer
        from pipeline.inputs.measured_trees import with_measured_trees

        methods = with_measured_trees(methods_of(task), inputs.get("drafts"))
        self._prompts = first_prompts(inputs["prompts"], task.settings["prompts"])
        self._turns = {prompt.prompt_id: at for at, prompt in enumerate(self._prompts)}
        tokenizer = pair_tokenizer(*task.runtime.models)
        texts = [prompt.token_ids for prompt in self._prompts]
        self._session = load_session(task, methods, tokenizer, task.settings["steps"], texts)
        warm_up(self._session, self._prompts)

    def names(self) -> list[str]:
        """Return the ids of the prompts."""
        return [prompt.prompt_id for prompt in self._prompts]

    def batch(self) -> int:
        """Return how many prompts are a shard: one, which every method decodes in turn."""
        return 1

    def compute(self, names: Sequence[str], progress: Progress) -> Result:
        """Decode a prompt with every method."""
        from pipeline.core.shards import nested
        from pipeline.models.devices import describe_machine

        at = self._turns[names[0]]
        tables = decode_prompt(self._session, self._prompts[at], at)
        progress(1)
        return describe_machine(self._session.target.device), [nested(STAGE, tables)]

    def metadata(self, measured: Sequence[Json]) -> Json:
        """Return the record's metadata on the runs and the models."""
        from pipeline.decoding.session import run_metadata
        from pipeline.models.devices import describe_device
        from pipeline.models.recorded_passes import can_record

        session = self._session
        models: dict[str, LanguageModel | Eagle3Drafter] = {"target": session.target}
        if session.neural is not None:
            models["drafter"] = session.neural.model
        return {
            "runs": [run_metadata(method) for method in session.runs],
            "bytes": {
                name: {"model": model.memory_bytes(), "cache_per_token": model.cache_bytes()}
                for name, model in models.items()
            },
            "machines": distinct(measured),
            **describe_device(session.target.device),
            "recorded_passes": can_record(session.target),
            "vocab_size": session.target.vocab_size,
        }


def decode_prompt(session: DecodingSession, prompt: Prompt, turn: int) -> Tables:
    """Decode a prompt with every method, in turn a different one first; or say why not."""
    from pipeline.decoding.session import decode_timed, or_reason, read_prompt

    def decode_all() -> Tables:
        read = read_prompt(session, prompt, session.steps)
        runs = len(session.runs)
        timed = {}
        for at in range(runs):
            run = (at + turn) % runs
            timed[run] = decode_timed(session, session.runs[run], prompt, read)
        rows = prompt_rows(session, prompt, read, [timed[run] for run in range(runs)])
        if turn < ROUNDS:
            answer, _ = timed[0]  # of the target alone
            rows["timings/passes"] = call_rows(session, prompt, read, answer.tokens)
        return rows

    rows, reason = or_reason(decode_all, session.target.device)
    return rows or {"failures": [{"prompt_id": prompt.prompt_id, "reason": reason}]}


def prompt_rows(
    session: DecodingSession,
    prompt: Prompt,
    read: Prefill,
    timed: Sequence[tuple[Answer, int | None]],
) -> Tables:
    """Return the rows of a prompt by table, of each run's answer and its peak of memory."""
    from pipeline.decoding import answer_scoring

    rows: Tables = {name: [] for name in STAGE.tables if name != "failures"}
    alone: dict[Method, list[int]] = {}  # baselines come first
    given_up = dict[tuple[int, ...], float]()
    drawn = {  # temperatures at which trees are drafted by draws or races
        run.temperature for run in session.runs if run.tree and run.sampling in (SPECULATIVE, RACES)
    }
    for at, (run, (answer, peak)) in enumerate(zip(session.runs, timed, strict=True)):
        key = {"prompt_id": prompt.prompt_id, "run": at}
        tokens = tuple(answer.tokens)
        if run.drafter == ALONE:
            alone[run] = answer.tokens
            logits, hidden = answer_scoring.answer_logits(read, tokens)
            if session.neural is not None:
                drafts = answer_scoring.draft_logits(session.neural, read.prompt, tokens, hidden)
            if run.temperature == 0 and session.neural is not None:
                steps = {"token_id": tokens, **answer_scoring.drafted_columns(logits, drafts)}
                rows["trajectory"] = by_position({"prompt_id": prompt.prompt_id}, steps)
            elif run.temperature in drawn:
                drawn.remove(run.temperature)
                entropies = answer_scoring.entropy_columns(logits, drafts, run.temperature)
                rows["contexts"] += by_position(key, entropies)
        elif tokens not in given_up:
            logits, _ = answer_scoring.answer_logits(read, tokens)
        if tokens not in given_up:
            given_up[tokens] = float(answer_scoring.log_probability_given_up(logits, tokens).sum())
        rows["data"].append(
            {
                **key,
                "source": prompt.source,
                "method": run.name,
                **attributes(run, "drafter", "draft_length", "temperature"),
                "token_ids": answer.tokens,
                "n_tokens": len(tokens),
                "text_tokens": len(prompt.token_ids) + len(tokens),
                "ended": answer.ended,
                "nats_given_up": given_up[tokens],
                **answer_scoring.compare_with_baseline(answer.tokens, alone[baseline(run)]),
            }
        )
        rows["timings/runs"].append(
            key
            | attributes(answer, "first_seconds", "begin_seconds", "seconds")
            | {"peak_bytes": peak}  # None but on CUDA, where the thread waits for the device
            | {"processor_seconds": answer.processor_seconds if peak is None else None}
        )
        for call in answer.calls:
            for name in ("calls", "timings/calls"):
                own = [column for column in STAGE.tables[name] if column not in RUN]
                rows[name].append(key | attributes(call, *own))
            rows["levels"] += [
                key | {"position": call.position, "level": level, "children": n, "accepted": taken}
                for level, (n, taken) in enumerate(call.levels if run.tree else (), start=1)
            ]
    return rows


def call_rows(
    session: DecodingSession, prompt: Prompt, read: Prefill, tokens: Sequence[int]
) -> list[Row]:
    """Return a row for each draft length, with what a call costs at this prompt."""
    from pipeline.decoding.call_costs import time_calls

    calls = time_calls(session, read, tokens)
    names = STAGE.tables["timings/passes"].keys() - {"prompt_id"}
    return [{"prompt_id": prompt.prompt_id} | attributes(call, *names) for call in calls]


def by_position(key: Row, columns: Mapping[str, Sequence[float]]) -> list[Row]:
    """Return a row a position, of columns with a value at each."""
    values = zip(*columns.values(), strict=True)
    return [
        {**key, "position": at, **dict(zip(columns, of, strict=True))}
        for at, of in enumerate(values)
    ]


def attributes(source: object, *names: str) -> Row:
    """Return some attributes by name."""
    return {name: getattr(source, name) for name in names}


def summary(task: Task, artifact: Artifact) -> list[Json]:
    """One row a method, the baselines included."""
    from analysis.decoding import metrics, speed
    from pipeline.inputs.decoded_artifacts import read_decoded

    target, *drafter = (model.settings.label for model in task.runtime.models)
    decoded = read_decoded(target, "".join(drafter), artifact)
    speeds = speed.throughput(decoded, *task.runtime.statistics)
    ends = dict(zip(speed.SPEEDUP_ENDS, interval_columns("speedup"), strict=True))
    ends |= dict(zip(speed.TPOT_ENDS, interval_columns("tpot_speedup"), strict=True))
    rows = metrics.acceptance(decoded, *task.runtime.statistics)
    rows = rows.join(speeds.rename(columns=ends))
    rows = rows.assign(target=target, prompts=decoded.n_prompts)
    shown = ["target", "rule", "prompts", "method", "draft_length", "temperature"]
    for name in ("rate", "tokens_per_call"):
        shown += [name, *interval_columns(name)]
    shown += ["agreement", "nats_given_up", "tokens_per_second"]
    for name in ("speedup", "tpot_speedup"):  # of whole answers; after their first token
        shown += [name, *interval_columns(name)]
    return [dict(zip(shown, row, strict=True)) for row in rows[shown].itertuples(index=False)]


STAGE = Stage(
    name="decoding",
    version=18,
    upstream=("prompts", "drafts"),  # the latter for methods that take what it measured
    tables={
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
            "tested": Column(
                "int32", "tokens before and at the first rejection; of a tree, levels"
            ),
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
        },
    },
    plan=plan,
    compute=compute,
    summary=summary,
    printed=True,
)
