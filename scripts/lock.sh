#!/bin/sh
# Pins the dependencies of pyproject.toml to versions and hashes: `make lock`, after changing them there.
# One resolution serves every Python from 3.12 on; the dev lock holds the default one's versions.
# hatchling and editables are pinned too, because they build the editable install.
set -eu
cd "$(dirname "$0")/.."
uv=$(command -v uv || echo .venv/bin/uv)

compile() {
    printf 'hatchling\neditables\n' | "$uv" pip compile --quiet --universal --python-version 3.12 \
        --generate-hashes --no-annotate --no-header --no-emit-index-url --no-config "$@" pyproject.toml -
}

compile --output-file requirements.lock
compile --extra dev --constraints requirements.lock --output-file requirements-dev.lock
if grep -n -e '://' -e '^--' -e '^-i' requirements.lock requirements-dev.lock; then
    echo "lock: the lines above name an address; a lock holds versions and hashes only." >&2
    exit 1
fi
