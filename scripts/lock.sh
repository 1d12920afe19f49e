#!/bin/sh
# Pins the dependencies of pyproject.toml to versions and hashes: `make lock`, after changing them there.
# One resolution serves every Python from 3.12 on; the default lock holds the dev one's versions.
# hatchling and editables are pinned too, because they build the editable install.
set -eu
cd "$(dirname "$0")/.."
uv=$(command -v uv || echo .venv/bin/uv)

compile() {
    printf 'hatchling\neditables\n' | "$uv" pip compile --quiet --universal --python-version 3.12 \
        --generate-hashes --no-annotate --no-header --no-emit-index-url --no-config "$@" pyproject.toml -
}

compile --extra dev --output-file requirements-dev.lock
compile --constraints requirements-dev.lock --output-file requirements.lock
if grep -n -e '://' -e '^--' -e '^-i' requirements.lock requirements-dev.lock; then
    echo "lock: the lines above name an address; a lock holds versions and hashes only." >&2
    exit 1
fi
