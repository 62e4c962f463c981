"""Vega, Vega-Lite and vega-embed as one script, for all charts of the page.

vl-convert puts them together, which takes four seconds. They depend on its version only, so they
are kept beside this module's compiled code.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from pipeline.paths import ROOT
from pipeline.store.durable import put

PLACE = Path(__file__).parent / "__pycache__"
SCRIPT = """
import sys, vl_convert
from pipeline.execution.children import end_with_parent
end_with_parent(int(sys.argv[1]))
sys.stdout.buffer.write(vl_convert.javascript_bundle().encode())
"""


class Bundle:
    """The script, made meanwhile by another process if it is not there yet."""

    def __init__(self, place: Path = PLACE) -> None:
        """Begin to make it; `place` is the directory where it is kept."""
        self._file = place / f"vega-{version('vl-convert-python')}.js"
        self._making: subprocess.Popen[bytes] | None = None
        if not self._file.is_file():
            command = [sys.executable, "-c", SCRIPT, str(os.getpid())]
            self._making = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)

    def read(self) -> str:
        """Return the script, safe inside an element of HTML.

        Raises:
            RuntimeError: vl-convert failed; what it said stands on standard error.
        """
        if self._making is None:
            return self._file.read_text(encoding="utf-8")
        made, _ = self._making.communicate()
        if self._making.returncode:
            raise RuntimeError("vl-convert could not make the scripts of the charts")
        script = made.decode().replace("</script", "<\\/script").replace("<!--", "<\\!--")
        with suppress(OSError):  # what can't be kept is made again
            self._file.parent.mkdir(exist_ok=True)
            beside = self._file.with_suffix(f".{os.getpid()}.tmp")
            beside.write_text(script, encoding="utf-8")
            put(beside, self._file)
        return script
