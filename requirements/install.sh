#!/usr/bin/env bash
# install.sh ENVIRONMENT LOCK: brings a virtual environment to what LOCK says, with this checkout and its plug-ins in it
# where LOCK has the build backend.
#
# Run by the Makefile from the root of the checkout; an environment that is in use survives it. uv installs,
# because it is several times faster; where it cannot be had, pip does the same from the same hashes.
set -euo pipefail
environment=$1
lock=$2

"${PYTHON:-python3}" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "ganger needs Python 3.11 or later; name one with: make PYTHON=/path/to/python3 ..." >&2
    exit 1
}
"${PYTHON:-python3}" -m venv "$environment"
python="$environment/bin/python"

if "$python" -m pip install --quiet --require-hashes --only-binary :all: -r requirements/uv.txt; then
    # Compiled once now, and not by every rank of the first job at once.
    install=("$python" -m uv pip install --quiet --compile-bytecode --python "$python")
else
    echo "uv cannot be had here; installing with pip instead, which is slower" >&2
    install=("$python" -m pip install --quiet)
fi
"${install[@]}" --require-hashes -r "$lock"
# With the build backend from the lock nothing is fetched unpinned.
if grep -q '^hatchling==' "$lock"; then
    projects=(--editable . --editable plugins/ganger-baselines --editable plugins/ganger-ssh)
    "${install[@]}" --no-deps --no-build-isolation "${projects[@]}"
fi
