"""Does a process keep its speed on cores that another uses too? ``python -m benchmarks.threads``.

Decodes with a random model of the shape of mini-large (``135m``: of SmolLM2-135M) for some seconds,
once alone and twice at the same time, one sequence or a batch of 32 at a time, on one thread and
on one a core, the latter with several spin counts of idle threads (see pipeline/__init__.py; 0 is
OMP_WAIT_POLICY=PASSIVE). Prints decoding steps a second of every process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

SHAPES = {
    "large": {"vocab_size": 2048, "hidden_size": 192, "num_hidden_layers": 6,
              "intermediate_size": 512, "num_attention_heads": 6, "num_key_value_heads": 3,
              "head_dim": 32},
    "135m": {"vocab_size": 49152, "hidden_size": 576, "num_hidden_layers": 30,
             "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3,
             "head_dim": 64},
}  # fmt: skip
SETTINGS = {
    "1 thread": {"OMP_NUM_THREADS": "1"},
    "torch's default": {"GOMP_SPINCOUNT": "300000"},
    "spin count 0": {"GOMP_SPINCOUNT": "0"},
    "spin count 2000": {"GOMP_SPINCOUNT": "2000"},
    "spin count 10000": {"GOMP_SPINCOUNT": "10000"},
}
SECONDS, LOADING, PROMPT = 3, 8, 64


def decode(name: str, batch: int, begin: float) -> None:
    """Decode from the time `begin` on, for SECONDS, and print the steps a second."""
    import torch

    from pipeline.models.load import random_qwen3
    from pipeline.models.passes import Texts

    shape = SHAPES[name] | {"tie_word_embeddings": True, "max_position_embeddings": 1024}
    model = random_qwen3(shape, "float32", "float32", torch.device("cpu"), name)

    @torch.inference_mode()
    def steps(until: float) -> int:
        count = 0
        while time.time() < until:
            texts = Texts(model, 2 * PROMPT, padding=torch.zeros(batch, dtype=torch.long))
            logits = texts.read(torch.ones((batch, PROMPT), dtype=torch.long))
            for _ in range(PROMPT):
                if time.time() >= until:
                    break
                logits = texts.extend(logits[:, -1].argmax(1, keepdim=True))
                count += 1
        return count

    steps(time.time() + 0.2)
    late = time.time() - begin
    time.sleep(max(0.0, -late))
    begun = time.time()
    rate = steps(begun + SECONDS) / (time.time() - begun)
    print(f"{rate:.1f}" + (f" (began {late:.0f} s late)" if late > 0 else ""))


def main(name: str) -> None:
    """Print a line for every setting and batch."""
    for batch in (1, 32):
        for label, given in SETTINGS.items():
            found = []
            for processes in (1, 2):
                begin = time.time() + LOADING
                command = [sys.executable, "-m", "benchmarks.threads", name, str(batch), str(begin)]
                running = [
                    subprocess.Popen(command, env=os.environ | given, stdout=-1, text=True)
                    for _ in range(processes)
                ]
                found.append(" and ".join(one.communicate()[0].strip() for one in running))
            print(f"{name}, batch {batch}, {label}: alone {found[0]}, beside another {found[1]}")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        decode(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
    else:
        main(sys.argv[1] if len(sys.argv) == 2 else "large")
