"""Sends a study's prompts to an inference server and saves the answers.

``python -m pipeline.ask URL study=smollm2``: URL is that of vLLM, or of llama.cpp's server. Prompts
are those of stage prompts (made if they are missing), the length of answers is
`distributions.steps`, and temperature and seed are those of `distributions`. Keys of its own:
ask.log_probs (how many per token; 0: token ids only), ask.model, ask.concurrent (requests at once;
a list: once for each load), ask.timeout (seconds for a whole answer), ask.name. A server's key is
that in OPENAI_API_KEY.

Writes below outputs/answers: NAME.jsonl, which `pipeline.engine` and `study=log` read; NAME.json,
which server was asked and how; and the server's page of /metrics before and after the requests. For
a list of loads each NAME ends with -at-LOAD. If it is stopped, run the same command again: it goes
on with the prompts without an answer, unless the server has another model by then. A login in URL
(http://user:password@host) is not stored.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
from filelock import FileLock, Timeout

from conf.schema import MAX_NAME_BYTES
from pipeline.core.commands import command
from pipeline.core.errors import PipelineError, first_line
from pipeline.core.files import digest, slug
from pipeline.core.shards import progress_bar
from pipeline.core.store import relative
from pipeline.engines.answers.checksums import with_checksum
from pipeline.engines.asking import servers
from pipeline.engines.asking.saved_answers import (
    check_same_server,
    mean_in_flight,
    read_answered,
    write_page,
    write_server_record,
)
from pipeline.engines.metrics_pages import read_page
from pipeline.engines.printed_text import printable
from pipeline.engines.registry import engine_named
from pipeline.settings.composition import files_and_overrides
from pipeline.study import Study

ATTEMPTS = 6  # at one prompt
WAIT = 1.0  # seconds before the second, doubled before each further one
BUSY = httpx2.codes.TOO_MANY_REQUESTS
SHOWN = 80  # characters of a long name that are kept
USAGE = "python -m pipeline.ask URL [OVERRIDES]"


class StudyPrompt(NamedTuple):
    """A prompt of a study."""

    ids: Sequence[int]  # of its tokens
    source: str  # its category, else its file


def main(arguments: Sequence[str]) -> None:
    """Ask the server that the command line names."""
    with command(USAGE, __doc__, arguments, goes_on=True):
        urls, overrides = files_and_overrides(arguments)
        if len(urls) != 1:
            raise PipelineError(f"{len(urls)} addresses of a server were given, not one: {USAGE}")
        asyncio.run(_ask(urls[0], Study(*overrides, "stage=prompts")))


async def _ask(url: str, study: Study) -> None:
    settings = study.config.ask
    wanted = settings.concurrent
    loads = wanted if isinstance(wanted, list) else [wanted]
    key = os.environ.get("OPENAI_API_KEY", "").strip()
    address, login = servers.split_login(url)
    async with httpx2.AsyncClient(
        timeout=httpx2.Timeout(servers.PATIENCE, read=None, pool=None),  # of the whole: `fetch`
        limits=httpx2.Limits(max_connections=max(loads)),
        headers={"Authorization": f"Bearer {key}"} if key else {},
        auth=login,
        trust_env=False,
    ) as client:
        server = await servers.open_server(client, address, settings.model)
        prompts = _prompts(study)
        name = _name(study, await servers.metrics_page(client, server))
        for load in loads:
            before = await servers.metrics_page(client, server)
            stem = f"{name}-at-{load}" if isinstance(wanted, list) else name
            path = Path(study.config.outputs) / "answers" / f"{stem}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with FileLock(path.with_name(f".{path.stem}.lock"), timeout=0):
                    await _save(client, server, study, prompts, path, before, load)
            except Timeout:
                raise PipelineError(
                    f"another command writes to {path}: wait for it, or give ask.name=NAME"
                ) from None


async def _save(
    client: httpx2.AsyncClient,
    server: servers.Server,
    study: Study,
    prompts: Mapping[str, StudyPrompt],
    path: Path,
    before: str | None,
    load: int,
) -> None:
    """Ask for the answers that a file lacks, `load` at once; write it, and what lies beside it."""
    settings = study.config.ask
    wanted = study.config.distributions
    how = wanted.steps, wanted.temperature, wanted.seed, settings.log_probs
    requests = {
        name: servers.request_body(server, prompt.ids, *how) for name, prompt in prompts.items()
    }
    answered = read_answered(path, requests)
    record = path.with_suffix(".json")
    about = _about(server, load, before)
    if answered:
        check_same_server(record, about, answered.values())
    todo = {name: body for name, body in requests.items() if name not in answered}
    if not todo:
        print(f"{relative(path)} has all {len(answered)} answers: give ask.name=NAME for others")
        return
    # of no page until all is done: a run that is killed leaves none that covers its answers
    counts: dict[str, Any] = {"answers": len(answered), "answers_of_pages": 0, "seconds": 0.0}
    write_server_record(record, about | counts)
    write_page(path.with_suffix(".before.txt"), before)
    write_page(path.with_suffix(".after.txt"), None)
    began = time.time()
    failed = await _send(client, server, todo, path, load, settings.timeout, prompts)
    seconds = round(time.time() - began, 3)
    after = await servers.metrics_page(client, server)
    write_page(path.with_suffix(".after.txt"), after)
    counts = {
        "answers": len(requests) - len(failed),
        "answers_of_pages": len(todo) - len(failed),  # those between the two pages
        "seconds": seconds,
        "in_flight": mean_in_flight(path),
    }
    write_server_record(record, about | counts)
    if failed:
        name, reason = next(iter(failed.items()))
        raise PipelineError(
            f"{len(failed)} of {len(requests)} prompts have no answer; the first is {name}: "
            f"{reason}. The same command asks for these again"
        )
    summary = f"{server.shown}, {printable(server.model)}: {len(todo)} answers in {seconds:.1f} s"
    if counts["in_flight"] is not None:
        summary += f", {counts['in_flight']:.1f} requests in flight on average, {load} at most"
    if after is None:
        summary += f"; no counts on /metrics{_page_hint(server)}"
    print(f"{summary}\nanswers: {relative(path)}", flush=True)


def _page_hint(server: servers.Server) -> str:
    """Return what makes a server have a page of /metrics, empty where nothing does."""
    flag = engine_named(server.engine).metrics_flag
    return f" (start {server.engine} with {flag})" if flag else ""


def _about(server: servers.Server, load: int, page: str | None) -> dict[str, Any]:
    """Return what NAME.json says of a server; `page` is its page before the requests."""
    return {
        "url": server.url,
        **server.identity,
        "version": server.version,
        "draft_length": _draft_length(server, page),
        "machine": f"{platform.machine()}, {platform.system()}",
        "concurrent": load,
    }


def _draft_length(server: servers.Server, page: str | None) -> int | None:
    """Return how many tokens the server drafts; None where it does not tell before it drafts."""
    length = 0 if page is None else len(read_page("/metrics", page).by_place)
    tells_none = page is not None and engine_named(server.engine).tells_no_drafts
    return length if length or tells_none else None


def _prompts(study: Study) -> dict[str, StudyPrompt]:
    """Return the study's prompts, sampled where that was not done yet."""
    tasks = {task.key: task for task in study.tasks["prompts"]}
    if study.config.distributions.source != "model" or len(tasks) > 1:
        raise PipelineError(
            f"targets {', '.join(study.targets)}, distributions.source="
            f"{study.config.distributions.source}: give a study of models that share a tokenizer"
        )
    artifact = study.store.get(*tasks.values())
    rows = artifact.read(columns=["prompt_id", "token_ids", "source"]).to_pylist()
    return {row["prompt_id"]: StudyPrompt(row["token_ids"], row["source"]) for row in rows}


def _name(study: Study, page: str | None) -> str:
    """Return the name of the files: `ask.name`, else of study and target, and the draft length."""
    if study.config.ask.name is not None:
        return study.config.ask.name
    name = "-".join([study.config.study, *study.targets])
    if len(name.encode()) > MAX_NAME_BYTES:
        name = f"{slug(name)[:SHOWN]}-{digest(name.encode())[:8]}"
    length = 0 if page is None else len(read_page("/metrics", page).by_place)
    return f"{name}-drafts-of-{length}" if length else name


async def _send(
    client: httpx2.AsyncClient,
    server: servers.Server,
    requests: Mapping[str, Any],
    path: Path,
    load: int,
    timeout: float,
    prompts: Mapping[str, StudyPrompt],
) -> dict[str, str]:
    """Append answers as they come, of `load` at once; return the prompts without one, and why."""
    failed: dict[str, str] = {}
    models: list[str] = []  # that the answers name
    todo = iter(requests.items())
    with (
        path.open("a", encoding="ascii") as file,
        closing(progress_bar(len(requests), "answer", f"ask {server.shown}")) as bar,
    ):

        async def work() -> None:
            for name, request in todo:
                try:
                    response, took = await _answer(client, server, request, timeout)
                    began = time.time() - took
                    models.append(printable(response.get("model") or server.model))
                    if models[-1] != models[0]:
                        raise PipelineError(f"it was answered by {models[-1]}, not {models[0]}")
                except PipelineError as error:
                    failed[name] = str(error)
                else:
                    line = {"custom_id": name, "request": request, "response": response}
                    line |= {"seconds": round(took, 6), "began": round(began, 6)}
                    line |= {"concurrent": load, "source": prompts[name].source}
                    # as ASCII: a text may be no valid Unicode
                    file.write(json.dumps(with_checksum(line)) + "\n")
                    file.flush()
                bar.update(1)

        await asyncio.gather(*(work() for _ in range(min(load, len(requests)))))
    return failed


async def _answer(
    client: httpx2.AsyncClient, server: servers.Server, request: Any, seconds: float
) -> tuple[dict[str, Any], float]:
    """Return the answer to a request and its seconds; asks again while the server is busy."""
    reason = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            await asyncio.sleep(WAIT * 2 ** (attempt - 1))
        began = time.perf_counter()
        try:
            status, raw = await servers.fetch(client, server.endpoint, request, seconds)
        except TimeoutError:
            raise PipelineError(f"no answer in ask.timeout={seconds:g} seconds") from None
        except httpx2.DecodingError as error:  # another attempt would send the same
            raise PipelineError(
                f"the server's answer can't be read: {first_line(error)}"
            ) from error
        except httpx2.HTTPError as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            continue
        try:
            body = json.loads(raw)
        except (ValueError, RecursionError):
            body = raw[:200].decode("utf-8", errors="replace")
        refusal = body.get("error") or body.get("detail") if isinstance(body, dict) else body
        reason = f"status {status}: {refusal!r:.300}"
        if httpx2.codes.is_client_error(status) and status != BUSY:
            raise PipelineError(f"the server refuses it ({reason})")
        if httpx2.codes.is_success(status) and not isinstance(body, str) and not refusal:
            return servers.checked_answer(request, body), time.perf_counter() - began
    raise PipelineError(f"no answer in {ATTEMPTS} attempts ({reason})")


if __name__ == "__main__":
    main(sys.argv[1:])
