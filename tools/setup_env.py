"""Make the environment ``.venv``: the pinned packages and the build of torch that fits the machine.

Started by make through ``tools/setup_env.sh``; uses the standard library only. The file
``.venv/ready`` is written last and holds the state the environment was made for ("checksum of
pyproject.toml and constraints.txt, checksum of the directory"). Without it an environment
counts as half-made and is made again from nothing.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import subprocess
import sys
import threading
import urllib.request
import venv
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PROBE_SECONDS = 5.0


def main(state: str) -> None:
    """Bring ``.venv`` to ``state``; return at once when it is there already.

    Raises:
        SystemExit: when .venv is a link, or pip failed, with what to do about it.
    """
    environment = ROOT / ".venv"
    ready = environment / "ready"
    if environment.is_symlink():  # making it anew would empty what it leads to
        raise SystemExit(f".venv is a link to {environment.readlink()}: remove the link")
    with (ROOT / ".venv.lock").open("a") as lock:
        acquire(lock)
        reusable = is_reusable(environment, state)
        if reusable and ready.read_text().strip() == state:
            return
        ready.unlink(missing_ok=True)
        verb = "Updating" if reusable else "Making"
        print(f"{verb} .venv with Python {platform.python_version()}: a few minutes.", flush=True)
        if not reusable:
            venv.EnvBuilder(clear=True, symlinks=True, with_pip=True).create(environment)
        python = environment / "bin" / "python"
        install(python, lock)
        # what cannot be compiled now is compiled, or complained of, when it is first run
        subprocess.run([str(python), "-m", "tools.compile_kernel"], cwd=ROOT, check=False)
        written = environment / "ready.new"
        written.write_text(state + "\n")
        written.replace(ready)


def acquire(lock: IO[str]) -> None:
    """Wait until no other process, nor a pip it left behind, works on the environment."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("Another process is making .venv; waiting for it.", flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)


def is_reusable(environment: Path, state: str) -> bool:
    """Return whether the environment was once completed, here and with this Python version.

    A virtual environment holds absolute paths, so one that was moved is not reusable.
    """
    ready = environment / "ready"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return (
        ready.exists()
        and ready.read_text().split()[1:] == state.split()[1:]
        and (environment / "bin" / "python").exists()
        and (environment / "lib" / version).is_dir()
    )


def install(python: Path, lock: IO[str]) -> None:
    """Install the project, editable, and its pinned packages with one call of pip."""
    command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    command += ["--constraint", "constraints.txt", "--editable", ".[dev]"]
    # pip inherits the lock: should this process be killed, its pip still holds others off.
    result = subprocess.run(
        command + torch_index(), cwd=ROOT, stdin=subprocess.DEVNULL, pass_fds=[lock.fileno()]
    )
    if result.returncode:
        hint = ""
        if (platform.system(), platform.machine()) == ("Darwin", "x86_64"):
            hint = " There is no current PyTorch for Intel Macs, nor for a Python under Rosetta."
        sys.exit(
            "pip could not install the packages; its message is above. The half-made .venv will "
            "not be used: run make again once the cause (network, disk space, package index) is "
            f"gone.{hint}"
        )


def torch_index() -> list[str]:
    """Return pip's options for the index of torch builds; none means the default index.

    ``TORCH_INDEX``, where set, names the index (empty: none). Else Linux without an NVIDIA driver
    takes the CPU builds, which spares gigabytes of CUDA libraries.
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
    """Return whether there is an NVIDIA driver (under WSL only its library shows it)."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Path("/proc/driver/nvidia/version").exists()
    return True


def is_reachable(index: str, seconds: float = PROBE_SECONDS) -> bool:
    """Return whether the index answers for torch within ``seconds``, name look-up included."""
    answered = threading.Event()

    def probe() -> None:
        try:
            urllib.request.urlopen(index.rstrip("/") + "/torch/", timeout=seconds).close()
        except Exception:  # any failure has one meaning: pip is not to be sent there
            return
        answered.set()

    # A thread, because urllib's timeout does not bound the name look-up.
    prober = threading.Thread(target=probe, daemon=True)
    prober.start()
    prober.join(seconds)
    return answered.is_set()


if __name__ == "__main__":
    main(sys.argv[1])
