#!/bin/sh
# Find a fit Python and let it make the environment: tools/setup_env.sh STATE (called by make).
# A candidate is judged by running it, since a name on PATH may be a shim that fails.
# PYTHON, where set, is the only candidate.
cd "$(dirname "$0")/.." || exit 1

probe='
import sys
version = sys.version_info[:3]
if not (3, 11) <= version[:2] <= (3, 14) or version == (3, 14, 1):
    sys.exit("is Python %d.%d.%d" % version)
try:
    import ensurepip, fcntl, ssl, venv
except ImportError as error:
    sys.exit("is Python %d.%d.%d, incomplete: %s" % (version + (error,)))
'

# An existing environment comes first, so that it keeps its Python when it is brought up to date.
if [ -n "$PYTHON" ]; then
    set -- "$1" "$PYTHON"
else
    set -- "$1" .venv/bin/python python3 python3.13 python3.12 python3.11 python3.14 python
fi
state=$1
shift

rejected=
for python in "$@"; do
    if ! command -v "$python" >/dev/null 2>&1; then
        reason="is not there"
    elif output=$("$python" -c "$probe" 2>&1 </dev/null); then
        exec "$python" tools/setup_env.py "$state"
    elif ! reason=$(printf '%s\n' "$output" | grep '^is Python'); then
        reason="does not run ($(printf '%s\n' "$output" | head -n 1))"
    fi
    rejected="$rejected
    $python: $reason"
done

cat >&2 <<END
No fit Python. Needed: CPython 3.11 to 3.14 (not 3.14.1, which networkx refuses) with its venv and
ensurepip modules. Tried:$rejected
What to do: install one (Debian, Ubuntu: apt install python3 python3-venv; macOS: brew install
python@3.13; anywhere: uv python install 3.13), or name yours: make install PYTHON=/path/to/python3.13
END
exit 1
