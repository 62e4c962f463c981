"""What engines wrote, as it came (samples/README.md), and tests against the engines themselves."""

import gzip
import json
from contextlib import contextmanager
from pathlib import Path

import pytest

from tools.engines import UnsupportedProcessorError

SAMPLES = Path(__file__).parent / "samples"


def lines(name):
    """Return the lines of a file of answers that `pipeline.ask` saved."""
    text = gzip.decompress((SAMPLES / f"{name}.jsonl.gz").read_bytes()).decode()
    return [json.loads(line) for line in text.splitlines()]


@contextmanager
def skipped_where_it_cannot_run():
    """Skip the test, with the server's own line, where this processor can't run its build."""
    try:
        yield
    except UnsupportedProcessorError as error:
        pytest.skip(str(error))


def answer_ids(line):
    """Return the token ids of an answer of vLLM or llama.cpp."""
    response = line["response"]
    return response["tokens"] if "tokens" in response else response["choices"][0]["token_ids"]


def vllm_page(passes, seconds, requests, emitted=None, by_place=(), engine="0", model="m"):
    """Return the counters of an engine of vLLM; with drafts in every pass, where any are accepted.

    `emitted` are the tokens after each request's first, without drafts as many as passes.
    """
    emitted = passes + sum(by_place) if emitted is None else emitted
    counters = {
        "generation_tokens_total": emitted + requests,
        "time_to_first_token_seconds_count": requests,
        "inter_token_latency_seconds_count": passes,
        "inter_token_latency_seconds_sum": seconds,
    }
    if by_place:
        counters |= {
            "spec_decode_num_drafts_total": passes,
            "spec_decode_num_draft_tokens_total": passes * len(by_place),
            "spec_decode_num_accepted_tokens_total": sum(by_place),
        }
    labels = f'engine="{engine}",model_name="{model}"'
    text = "".join(f"vllm:{name}{{{labels}}} {value}\n" for name, value in counters.items())
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    for place, accepted in enumerate(by_place):
        text += f'{name}{{{labels},position="{place}"}} {accepted}\n'
    return text


def metrics(drafts, model="m", created=1.0, process=5.0):
    """Return a page of replicas that made so many drafts of 2; 0.8 and 0.5 of them were accepted.

    `created` and `process` are when counters and the server began.
    """
    text = f"# HELP process_start_time_seconds x\nprocess_start_time_seconds {process}\n"
    for engine, n in drafts.items():
        text += vllm_page(n, 0.02 * n, n // 20, None, (0.8 * n, 0.5 * n), engine, model)
        labels = f'engine="{engine}",model_name="{model}"'
        text += f"vllm:generation_tokens_created{{{labels}}} {created}\n"
    return text
