"""What engines wrote, as it came (samples/README.md), and tests against the engines themselves."""

import gzip
import json
from pathlib import Path

SAMPLES = Path(__file__).parent / "samples"


def lines(name):
    """Return the lines of a file of answers that `pipeline.ask` saved."""
    text = gzip.decompress((SAMPLES / f"{name}.jsonl.gz").read_bytes()).decode()
    return [json.loads(line) for line in text.splitlines()]


def answer_ids(line):
    """Return the token ids of an answer of vLLM or llama.cpp."""
    response = line["response"]
    return response["tokens"] if "tokens" in response else response["choices"][0]["token_ids"]
