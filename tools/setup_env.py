"""Create the environment ``.venv`` with the pinned packages and the right build of torch.

Make starts it; it uses the standard library only. The file ``.venv/ready`` is written last and
holds the state of the environment ("checksum of pyproject.toml and constraints.txt, checksum of the
directory, core or dev"). Without it an environment counts as incomplete and is created again from
scratch.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import subprocess
import sys
import time
import urllib.request
import venv
from importlib.util import find_spec
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
COMPILE = """
import numpy as np
from analysis import TopK, certify
from analysis.rules import StrictGreedy
for dist in (TopK.from_logits(np.zeros((1, 2), np.float32)), TopK.from_probabilities([0.5, 0.5])):
    certify(dist, StrictGreedy())
"""  # caches the compiled kernel, which saves seconds in the first run
PROJECT = {"dev": ".[dev]", "core": "."}  # pip's requirement, by kind of environment


def main(state: str) -> None:
    """Bring ``.venv`` to ``state``; return at once if it is up to date.

    Raises:
        SystemExit: this Python does not fit, .venv is a link, or the installation failed; the
            message says what to do.
    """
    check_python()
    environment = ROOT / ".venv"
    ready = environment / "ready"
    if environment.is_symlink():  # creating it again would empty the link's target
        raise SystemExit(f".venv is a link to {environment.readlink()}: remove the link")
    with (ROOT / ".venv.lock").open("a") as lock:
        acquire(lock)
        reusable = is_reusable(environment, state)
        current = ready.read_text().split() if reusable else []
        requested = state.split()
        if current[2:] == ["dev"]:  # includes the core
            requested[2] = "dev"
        if current == requested:
            return
        ready.unlink(missing_ok=True)
        verb = "Updating" if reusable else "Making"
        print(f"{verb} .venv with Python {platform.python_version()}: a few minutes.", flush=True)
        begun = time.monotonic()
        if not reusable:
            venv.EnvBuilder(clear=True, symlinks=True, with_pip=True).create(environment)
        install(environment, PROJECT[requested[2]], lock)
        python = str(environment / "bin" / "python")
        # if this fails, the kernel is compiled, or the error shown, at the first run
        subprocess.run([python, "-c", COMPILE], cwd=ROOT, check=False)
        written = environment / "ready.new"
        written.write_text(" ".join(requested) + "\n")
        written.replace(ready)
        print(f".venv is ready: {time.monotonic() - begun:.0f} s", flush=True)


def check_python() -> None:
    """Check that this Python is one that the project runs with, and complete."""
    version = sys.version_info[:3]
    fits = (3, 11) <= version[:2] <= (3, 14) and version != (3, 14, 1)
    if not fits or find_spec("ensurepip") is None:
        sys.exit(
            f"{sys.executable} is Python {'.'.join(map(str, version))}: needed is 3.11 to 3.14 "
            "(not 3.14.1) with its modules venv and ensurepip (Debian, Ubuntu: apt install "
            "python3-venv). Name another: make install PYTHON=/path/to/python3.13"
        )


def acquire(lock: IO[str]) -> None:
    """Wait until no other process, nor a pip that it started, works on the environment."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("Another process is making .venv; waiting for it.", flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)


def is_reusable(environment: Path, state: str) -> bool:
    """Return whether the environment was completed in this place and with this Python version.

    A virtual environment contains absolute paths, so a moved one is not reusable.
    """
    ready = environment / "ready"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return (
        ready.exists()
        and ready.read_text().split()[1:2] == state.split()[1:2]
        and (environment / "bin" / "python").exists()
        and (environment / "lib" / version).is_dir()
    )


def install(environment: Path, requirement: str, lock: IO[str]) -> None:
    """Install the editable project and its pinned packages.

    Pip inherits the lock, so it still excludes others if this process is killed.
    """
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input"]
    pip += ["--disable-pip-version-check", "--constraint", "constraints.txt"]
    command = [*pip, "--editable", requirement, *torch_index()]
    if subprocess.run(command, cwd=ROOT, pass_fds=[lock.fileno()], check=False).returncode:
        sys.exit(
            "pip could not install the packages. The half-made .venv will not be used: run make "
            "again once the cause (network, disk space, package index) is gone."
        )


def torch_index() -> list[str]:
    """Return pip's options for the index of torch builds; empty for the default index.

    ``TORCH_INDEX``, if set, is the index (empty: the default one). Otherwise Linux without an
    NVIDIA driver gets the CPU builds, which saves gigabytes of CUDA libraries, where their index
    answers.
    """
    index = os.environ.get("TORCH_INDEX")
    if index is None:
        if platform.system() != "Linux" or has_nvidia_driver():
            return []
        index = CPU_INDEX
        try:
            urllib.request.urlopen(f"{index}/torch/", timeout=5).close()
        except OSError:
            print(f"{index} does not answer: torch comes from the default index.", flush=True)
            return []
    return ["--extra-index-url", index] if index else []


def has_nvidia_driver() -> bool:
    """Return whether there is an NVIDIA driver (under WSL only its library is visible)."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Path("/proc/driver/nvidia/version").exists()
    return True


if __name__ == "__main__":
    main(sys.argv[1])
