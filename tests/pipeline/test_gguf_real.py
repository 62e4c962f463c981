"""A published GGUF file: what is known of its model, and answers that llama.cpp serves of it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np
import pytest
import torch

from analysis import certify
from analysis.rules import StrictGreedy
from analysis.statistics.drift import ANOTHER
from pipeline.gguf_models import source
from pipeline.loader import Study
from pipeline.models.load import load_model, load_tokenizer
from pipeline.paths import ROOT
from pipeline.store.distributions import read_distributions
from tests.pipeline import tiny
from tests.pipeline.served import lines, node

REAL = source.MODELS / "SmolLM2-135M-Instruct.Q4_1-b179c9523d0e-v1"


@pytest.mark.skipif(not REAL.is_dir(), reason="needs make fetch STUDY=smollm2")
def test_real_model() -> None:
    """What is known of SmolLM2: its digits, its template, and that it continues a known text."""
    tokenizer = load_tokenizer(str(REAL), None, "k")
    assert tokenizer.tokenize("  12") == ["ĠĠ", "1", "2"]
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    model = load_model(tiny.used(REAL, "k"))
    ids = torch.tensor([tokenizer.encode("The capital of France is")])
    with torch.inference_mode():
        assert tokenizer.decode(model.module(input_ids=ids).logits[0, -1].argmax()) == " Paris"


@pytest.mark.thorough
@pytest.mark.skipif(
    find_spec("llama_cpp") is None or not REAL.is_dir(),
    reason="needs pip install 'llama-cpp-python[server]' and make fetch STUDY=smollm2",
)
def test_answers_that_llama_cpp_serves_are_certified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of the study, asked through the server's OpenAI interface and scored here."""
    monkeypatch.setattr(source, "MODELS", REAL.parent)
    wheel = source.source(Study("study=smollm2").config.targets["smollm2"].path, "k")
    assert wheel is not None
    model = source._take(wheel, tmp_path)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "llama_cpp.server", "--model", str(model), "--port", port]
    url, rows = f"http://localhost:{port}/v1/chat/completions", []
    server = subprocess.Popen(
        [*command, "--n_ctx", "1024", "--n_threads", "1"], stderr=subprocess.DEVNULL
    )
    try:
        while server.poll() is None:  # it loads the model
            with suppress(ConnectionError), socket.create_connection(("localhost", int(port))):
                break
            time.sleep(0.5)
        for line in (ROOT / "assets/smollm2/prompts.jsonl").read_text().splitlines()[:4]:
            asked = {"messages": [{"role": "user", "content": json.loads(line)["prompt"]}],
                     "max_tokens": 24, "temperature": 0, "repeat_penalty": 1}  # fmt: skip
            sent = Request(url, json.dumps(asked).encode(), {"Content-Type": "application/json"})
            with urlopen(sent, timeout=120) as response:
                rows.append({"request": asked, "response": json.load(response)})
    finally:
        server.terminate()
        server.wait()
    path = lines(tmp_path / "served.jsonl", *rows)
    found = tiny.built(node(REAL, path, steps=24), tmp_path)
    drift = found.record.facts["drift"]["served.jsonl"]
    assert drift["steps"] >= 4 * 20
    assert drift["share"] < ANOTHER  # its products are of 8 bits: 2.7 % of 512 steps were measured
    lower = certify(read_distributions(found), StrictGreedy()).lower
    assert 0.05 < np.median(lower) < 1
