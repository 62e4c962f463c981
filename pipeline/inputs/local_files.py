"""Files of models and prompts on this machine: which of them count, and where they are."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.core.errors import PipelineError
from pipeline.core.paths import OUTPUTS, ROOT

MODEL_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model")
PICKLED = "pytorch_model.bin"  # weights of published heads without safetensors
HEAD_FILES = (*MODEL_FILES, PICKLED)
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "vocab.json", "merges.txt"),
    *("special_tokens_map.json", "added_tokens.json", "tokenizer.model", "vocab.txt"),
)
PROMPT_FILES = ("*.jsonl", "*.parquet")
PROMPT_LEVELS = 3  # levels of folders, so that no home directory is searched through
HUB_ID = re.compile(r"(?!.*(--|\.\.))\w[\w.-]*/[\w.-]*\w")
SMOLLM2 = OUTPUTS / "models" / "SmolLM2-135M-Instruct"  # made by tools/smollm2.py


def local_path(path: str, key: str = "") -> Path | None:
    """Return a local path, or None for a hub id; a relative path may start from the repository.

    Raises:
        PipelineError: it is neither.
    """
    home = Path(os.path.expanduser(path))  # noqa: PTH111  keeps ~ of an unknown user
    for candidate in (home, ROOT / path):
        if candidate.exists():
            return candidate.resolve()
    if HUB_ID.fullmatch(path):
        return None
    where = f"{key + '=' if key else ''}{path} does not exist"
    if ROOT / path == SMOLLM2:
        raise PipelineError(f"{where}: python -m tools.smollm2 makes it, and make reproduce, too")
    raise PipelineError(f"{where}, and is no hub id (owner/name) either")


def local_file(path: str, key: str = "targets") -> Path:
    """Return the local path of a file; PipelineError if there is none."""
    with suppress(PipelineError):
        if (local := local_path(path)) is not None and local.is_file():
            return local
    raise PipelineError(f"{key}={path}: there is no such file")


def matching(folder: Path, patterns: Sequence[str], levels: int | None = None) -> list[Path]:
    """Return the files below a folder whose relative paths match, sorted; * crosses folders.

    `levels` limits the levels of folders, this one included.
    """
    from huggingface_hub.utils import filter_repo_objects

    depths = ["**/*"] if levels is None else ["/".join("*" * n) for n in range(1, levels + 1)]
    paths = (path for depth in depths for path in folder.glob(depth) if path.is_file())
    names = sorted(path.relative_to(folder).as_posix() for path in paths)
    return [folder / name for name in filter_repo_objects(names, allow_patterns=list(patterns))]


def file_state(path: Path) -> str:
    """Return a file's size, times and inode, of which some change with its content."""
    state = path.stat()
    return f"{state.st_size}:{state.st_mtime_ns}:{state.st_ctime_ns}:{state.st_ino}"
