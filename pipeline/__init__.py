"""Everything that touches disk, models, devices or the clock; stages/ has the stages."""

import os
import sys

# '-m' while `python -m` looks up the module, 'draft-acceptance' for the installed script
if os.path.basename("".join(sys.argv[:1])) in ("-m", "draft-acceptance"):  # noqa: PTH119
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # at once, until `run_as_command` begins

# Before torch is imported, since its thread library reads it then: how long an idle thread waits
# without giving up its core. By default that is about a millisecond, which costs a process that
# shares its cores nearly all its speed; docs/decoding.md, "Threads", has the measurements.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
