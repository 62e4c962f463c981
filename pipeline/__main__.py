"""``python -m pipeline``: see pipeline.cli."""

from pipeline.console import terminal

with terminal():
    from pipeline.cli import main

    main()
