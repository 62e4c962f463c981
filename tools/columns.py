"""Print what every column means: ``python -m tools.columns [STAGE...]``.

The files carry the same as the metadata of their fields, for whoever has the files alone.
"""

from __future__ import annotations

import sys

from pipeline.errors import PipelineError, command
from pipeline.study import STAGES


def main(arguments: list[str]) -> None:
    """Print the columns of some stages, or of all."""
    with command("python -m tools.columns [STAGE...]", __doc__, arguments):
        for name in arguments or STAGES:
            if name not in STAGES:
                raise PipelineError(f"{name} is no stage: give one of {', '.join(STAGES)}")
            for file, columns in STAGES[name].tables.items():
                print(f"{name}: {file}.parquet")
                for label, column in columns.items():
                    print(f"    {label:24} {column.kind:14} {column.meaning}")


if __name__ == "__main__":
    main(sys.argv[1:])
