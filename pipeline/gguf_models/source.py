"""Which paths of models mean a GGUF file, what identifies it, and the directory made from it.

The directory is what the hub would give (config.json, model.safetensors, the tokenizer's files)
and origin.json: where the model is from, and under which licence. Its name holds the file's hash.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import PipelineError
from pipeline.gguf_models import package
from pipeline.gguf_models.package import Package
from pipeline.paths import OUTPUTS, ROOT
from pipeline.store.fingerprint import file_digest

MODELS = OUTPUTS / "models"
VERSION = 1  # of the conversion: bump it when what is written changes
ORIGIN = "origin.json"


@dataclass(frozen=True)
class File:
    """A GGUF file on this machine."""

    path: Path

    @property
    def stem(self) -> str:
        """The name of the file without its suffix."""
        return self.path.stem

    @property
    def origin(self) -> dict[str, str]:
        """Where the file is from, for the record."""
        return {}

    def take(self, _: Path) -> Path:
        """Return the file."""
        return self.path


def source(path: str, key: str) -> File | Package | None:
    """Return what a model's path means, or None for a directory or a hub id.

    Raises:
        PipelineError: there is no such file, or a package is not given as it has to be.
    """
    if path.startswith(package.SCHEME):
        return package.parse(path, key)
    if not path.endswith(".gguf"):
        return None
    for candidate in (Path(path).expanduser(), ROOT / path):
        if candidate.is_file():
            return File(candidate.resolve())
    raise PipelineError(f"{key}={path}: there is no such file")


def identity(
    path: str, key: str, digest: Callable[[Path], str] = file_digest
) -> dict[str, Any] | None:
    """Return what identifies the model in a GGUF file, or None for one that is in no such file.

    Nothing is fetched or converted. `digest` gives the SHA-256 of a file.
    """
    found = source(path, key)
    if found is None:
        return None
    sha256 = found.sha256 if isinstance(found, Package) else digest(found.path)
    return {"gguf": sha256, "conversion": VERSION}


def directory(path: str, key: str) -> Path | None:
    """Return the model directory made from a GGUF file, made now if there is none.

    Returns:
        None for a path that means no GGUF file.

    Raises:
        PipelineError: the file can't be fetched, is damaged, or holds what is not converted here.
    """
    found = source(path, key)
    if found is None:
        return None
    sha256 = found.sha256 if isinstance(found, Package) else file_digest(found.path)
    place = MODELS / f"{found.stem}-{sha256[:12]}-v{VERSION}"
    if (place / ORIGIN).is_file():
        return place
    from filelock import FileLock

    MODELS.mkdir(parents=True, exist_ok=True)
    partial, scratch = (place.with_name(f".{place.name}.{end}") for end in ("partial", "scratch"))
    with FileLock(place.with_name(f".{place.name}.lock")):
        if (place / ORIGIN).is_file():
            return place
        for folder in (partial, scratch, place):
            shutil.rmtree(folder, ignore_errors=True)
        try:
            partial.mkdir()
            scratch.mkdir()
            file = found.take(scratch)
            print(f"{file.name}: converting to {place}", flush=True)
            convert(file, partial, {**found.origin, "file": file.name, "sha256": sha256})
            partial.rename(place)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
            shutil.rmtree(partial, ignore_errors=True)
    return place


def convert(path: Path, place: Path, origin: Mapping[str, str]) -> None:
    """Write the model of the GGUF file `path` into the directory `place`; `origin` beside it.

    Raises:
        PipelineError: the file is damaged, or holds what is not converted here.
    """
    from safetensors.numpy import save_file

    from pipeline.gguf_models.tokenizer import write_tokenizer
    from pipeline.gguf_models.weights import GGUF, model_config, weights

    file = GGUF(path)
    config = model_config(file)
    write_tokenizer(file, place)
    save_file(dict(weights(file, config)), place / "model.safetensors", {"format": "pt"})
    write_json(place / "config.json", config)
    ends = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    write_json(place / "generation_config.json", ends)
    named = {key: file.fields.get(f"general.{key}") for key in ("name", "organization", "license")}
    write_json(place / ORIGIN, {**origin, **{k: v for k, v in named.items() if v is not None}})


def origin(path: str) -> dict[str, str] | None:
    """Return where the model in a GGUF file is from, for the record; None for any other."""
    place = directory(path, "path")
    return None if place is None else dict(json.loads((place / ORIGIN).read_text()))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write `content` for people to read."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
