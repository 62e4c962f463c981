"""``python -m pipeline``: see pipeline.cli."""

if __name__ == "__main__":  # other processes that compute import this module by another name
    from pipeline.cli import main

    main()
