"""Create the environment ``.venv`` with the pinned packages and the right build of torch.

Make starts it through ``tools/setup_env.sh``; it uses the standard library only. The file
``.venv/ready`` is written last and holds the state of the environment ("checksum of pyproject.toml
and constraints.txt, checksum of the directory, core or dev"). Without it an environment counts as
incomplete and is created again from scratch. The installer's output is in ``.venv/install.log``.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
import venv
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PROBE_SECONDS = 5.0
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
        SystemExit: .venv is a link, or the installation failed; the message says what to do.
    """
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
        files = (path for path in environment.rglob("*") if path.is_file())
        size = sum(path.lstat().st_size for path in files) / 1e6
        print(f".venv is ready: {time.monotonic() - begun:.0f} s, {size:.0f} MB", flush=True)


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
    """Install the editable project and its pinned packages, with uv if available, else pip."""
    python = str(environment / "bin" / "python")
    arguments = ["--constraint", "constraints.txt", "--editable", requirement, *torch_index()]
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    uv = shutil.which("uv")
    log = environment / "install.log"
    log.unlink(missing_ok=True)
    if uv is not None and not configured(python):
        # consider all indexes: torch's own index also has old versions of other packages
        command = [uv, "pip", "install", "--python", python, "--index-strategy"]
        if logged([*command, "unsafe-best-match", *arguments], log, lock) == 0:
            return
        print(f"uv could not install the packages ({log}): pip tries.", flush=True)
    if logged([*pip, *arguments], log, lock):
        last = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        hint = ""
        if (platform.system(), platform.machine()) == ("Darwin", "x86_64"):
            hint = " There is no current PyTorch for Intel Macs, nor for a Python under Rosetta."
        sys.exit(
            "\n".join(last[-10:])
            + f"\npip could not install the packages; all of its messages are "
            f"in {log}. The half-made .venv will not be used: run make again once the cause "
            f"(network, disk space, package index) is gone.{hint}"
        )


def configured(python: str) -> bool:
    """Return whether pip has its own package index configured, which uv does not read."""
    if any(name.startswith("UV_") for name in os.environ):
        return False
    output = subprocess.run([python, "-m", "pip", "config", "list"], capture_output=True, text=True)
    return any(word in output.stdout for word in ("index-url", "find-links", "no-index"))


def logged(command: list[str], log: Path, lock: IO[str]) -> int:
    """Run a command with its output in a file and a line of progress on a terminal.

    The command inherits the lock, so it still excludes others if this process is killed.
    """
    begun, packages = time.monotonic(), 0
    with log.open("a") as file, subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace", pass_fds=[lock.fileno()],
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            packages += line.startswith("Collecting ")
            if sys.stdout.isatty():
                progress = (
                    f"{packages} packages found, {line.strip()}" if packages else line.strip()
                )
                print(
                    f"\r\033[K{time.monotonic() - begun:4.0f} s  {progress[:70]}",
                    end="",
                    flush=True,
                )
    if sys.stdout.isatty():
        print("\r\033[K", end="", flush=True)
    return process.returncode


def torch_index() -> list[str]:
    """Return pip's options for the index of torch builds; empty for the default index.

    ``TORCH_INDEX``, if set, is the index (empty: the default one). Otherwise Linux without an
    NVIDIA driver gets the CPU builds, which saves gigabytes of CUDA libraries.
    """
    index = os.environ.get("TORCH_INDEX")
    if index is None:
        index = "" if platform.system() != "Linux" or has_nvidia_driver() else CPU_INDEX
    if not index:
        return []
    if not is_reachable(index):
        print(f"{index} does not answer: torch comes from the default index.", flush=True)
        return []
    return ["--extra-index-url", index]


def has_nvidia_driver() -> bool:
    """Return whether there is an NVIDIA driver (under WSL only its library is visible)."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Path("/proc/driver/nvidia/version").exists()
    return True


def is_reachable(index: str, seconds: float = PROBE_SECONDS) -> bool:
    """Return whether the index answers for torch within ``seconds``, including name look-up."""
    answered = threading.Event()

    def probe() -> None:
        try:
            urllib.request.urlopen(index.rstrip("/") + "/torch/", timeout=seconds).close()
        except Exception:  # after any failure pip should not use this index
            return
        answered.set()

    # A thread, because urllib's timeout does not bound the name look-up.
    prober = threading.Thread(target=probe, daemon=True)
    prober.start()
    prober.join(seconds)
    return answered.is_set()


if __name__ == "__main__":
    main(sys.argv[1])
