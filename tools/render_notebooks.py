"""Render every notebook with its outputs into docs/notebooks/.

Run ``make notebooks`` after ``make reproduce``; arguments are overrides, as for
``python -m pipeline``. Pictures are stored next to the pages. Outputs are text and pictures, so a
page looks the same on a code host and on the documentation site.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbconvert import MarkdownExporter

ROOT = Path(__file__).resolve().parent.parent
KNOB = 'overrides = ["study=mini"]'


def run(path: Path, overrides: list[str]) -> nbformat.NotebookNode:
    """Return a notebook with its outputs, run from the repository's root.

    Args:
        path: of the notebook. The first line of its second cell sets `overrides`.
        overrides: replace that value.
    """
    notebook = nbformat.read(path, as_version=4)
    shown = notebook.cells[1].source
    if not shown.startswith(KNOB):
        raise SystemExit(f"{path}: the second cell must begin with {KNOB}")
    notebook.cells[1].source = shown.replace(KNOB, f"overrides = {overrides!r}", 1)
    resources = {"metadata": {"path": str(ROOT)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    notebook.cells[1].source = shown
    return notebook


def page(notebook: nbformat.NotebookNode, name: str) -> tuple[str, dict[str, bytes]]:
    """Return an executed notebook as Markdown, and its pictures by file name."""
    resources = {"unique_key": name, "output_files_dir": "images"}
    text, exported = MarkdownExporter().from_notebook_node(notebook, resources=resources)
    note = (
        f"*Made from [notebooks/{name}.ipynb](../../notebooks/{name}.ipynb) by `make notebooks`.*"
    )
    text = text.replace(";\n```", "\n```")  # the semicolon only suppresses a notebook's output
    lines = [line.rstrip() for line in text.strip().splitlines()]
    return "\n".join([*lines, "", note, ""]), dict(exported["outputs"])


def main(overrides: list[str]) -> None:
    """Render every notebook."""
    os.environ.pop("MPLBACKEND", None)  # pictures are shown inline
    place = ROOT / "docs/notebooks"
    files = dict[str, bytes]()
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        text, pictures = page(run(path, ["study=mini", *overrides]), path.stem)
        files |= {f"{path.stem}.md": text.encode(), **pictures}
        print(f"docs/notebooks/{path.stem}.md", flush=True)
    (place / "images").mkdir(parents=True, exist_ok=True)
    for old in (*place.glob("*.md"), *place.glob("images/*.png")):  # once all of them ran
        old.unlink()
    for name, content in files.items():
        (place / name).write_bytes(content)


if __name__ == "__main__":
    main(sys.argv[1:])
