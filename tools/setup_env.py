"""Make or update the environment ``.venv``, for ``make install`` (the standard library alone).

The packages of constraints.txt come by uv: the user's, else one from the index. ``.venv/ready``
("checksum of the versions, checksum of the directory, core or dev") is written last: without it an
environment counts for nothing and is made from scratch.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parent.parent
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
DRIVERS = ("/proc/driver/nvidia/version", "/usr/lib/wsl/lib/libcuda.so.1")
SETTINGS = {"index-url": "UV_DEFAULT_INDEX", "find-links": "UV_FIND_LINKS", "cert": "SSL_CERT_FILE"}
AGAIN = (
    "The half-made .venv will not be used: run make again once the cause is gone. Another Python "
    "(3.11 to 3.14): make install PYTHON=/path/to/python3.13"
)


def main(wanted: str) -> None:
    """Bring ``.venv`` to the state `wanted`; return at once if it is there.

    Raises:
        SystemExit: .venv is a link, or the installation failed; the message says what to do.
    """
    place = ROOT / ".venv"
    ready = ROOT / ".venv" / "ready"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if place.is_symlink():  # making it anew would empty the link's target
        raise SystemExit(f".venv is a link to {place.readlink()}: remove the link")
    with (ROOT / ".venv.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another process is making .venv; waiting for it.", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        os.set_inheritable(lock.fileno(), True)  # held as long as what is started here runs
        state = wanted.split()
        there = ready.read_text().split() if ready.exists() else []
        if there[1:2] != state[1:2] or not (place / "lib" / version).exists():
            there = []  # of another directory or Python
        if there[2:] == ["dev"]:  # includes the core
            state[2] = "dev"
        if there == state:
            return
        print(f"Making .venv with Python {platform.python_version()}", flush=True)
        if not there:
            run(sys.executable, "-m", "venv", "--clear", str(place))
        ready.unlink(missing_ok=True)
        install(".[dev]" if state[2] == "dev" else ".", place / "bin")
        ready.with_name("ready.new").write_text(" ".join(state))
        ready.with_name("ready.new").replace(ready)


def install(what: str, programs: Path) -> None:
    """Install the project, editable, by uv with pip's settings; by pip itself if that fails."""
    pip = [str(programs / "python"), "-m", "pip", "--disable-pip-version-check"]
    uv = shutil.which("uv")
    if uv is None:
        run(*pip, "install", "--quiet", "--no-compile", "uv")
        uv = str(programs / "uv")
    settings = subprocess.run([*pip, "config", "list"], stdout=subprocess.PIPE, text=True)
    for name, value in re.findall(r"^\S+\.([\w-]+)='(.*)'$", settings.stdout, re.M):
        if name in SETTINGS:
            os.environ.setdefault(SETTINGS[name], value)
    packages = ["--quiet", "--constraint", "constraints.txt", "--editable", what, *torch_index()]
    to = ["--python", str(programs / "python"), "--index-strategy", "unsafe-best-match"]
    if call(uv, "pip", "install", *to, *packages):
        print("pip takes over from uv", flush=True)
        run(*pip, "install", "--no-compile", *packages)


def call(*command: str) -> int:
    """Return the exit status of a command in the repository."""
    return subprocess.run(command, cwd=ROOT, close_fds=False, check=False).returncode


def run(*command: str) -> None:
    """Run a command; SystemExit if it fails."""
    if call(*command):
        raise SystemExit(AGAIN)


def torch_index() -> list[str]:
    """Return the options for the index of torch: TORCH_INDEX, or the CPU builds without a GPU."""
    index = os.environ.get("TORCH_INDEX")
    driver = any(map(os.path.exists, DRIVERS))
    if index is None and platform.system() == "Linux" and not driver:
        try:
            urlopen(f"{CPU_INDEX}/torch/", timeout=5).close()
            index = CPU_INDEX
        except OSError:
            print(f"{CPU_INDEX} does not answer: torch as the index has it", file=sys.stderr)
    return ["--extra-index-url", index] if index else []


if __name__ == "__main__":
    main(sys.argv[1])
