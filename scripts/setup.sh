#!/bin/sh
# Sets the project up: finds Python, makes .venv, installs the locked dependencies, sees to tmux.
#   scripts/setup.sh          what a run needs (requirements.lock)
#   scripts/setup.sh dev      also what the tests need (requirements-dev.lock)
# Safe to interrupt and to run again. When it cannot go on it says why in one sentence and exits with 2.
set -eu
cd "$(dirname "$0")/.."
project=$PWD
kind=${1:-default}
case $kind in
    default) lock=requirements.lock ;;
    dev) lock=requirements-dev.lock ;;
    *) echo "setup: '$kind' is not a kind of set-up; say nothing or 'dev'." >&2 && exit 2 ;;
esac

venv=.venv
state=$venv/.termrl
log=.tools/setup.log

say() { printf '[setup %3ds] %s\n' "$(($(date +%s) - began))" "$*"; }
give_up() {
    printf 'setup: %s\n' "$*" >&2
    exit 2
}

# --- is there anything to do? -----------------------------------------------------------------------

# The project's path belongs to it: a .venv holds absolute paths and does not survive a move.
fingerprint() {
    { cat requirements.lock "$1" pyproject.toml && pwd -P; } | if command -v sha256sum >/dev/null; then
        sha256sum
    else
        shasum -a 256
    fi | cut -d' ' -f1
}

stamped() { [ -f "$state/$1" ] && [ "$(cat "$state/$1")" = "$(fingerprint "$2")" ]; }

installed() {
    [ ! -e "$state/unfinished" ] && [ -x "$venv/bin/termrl" ] || return 1
    stamped dev requirements-dev.lock || { [ "$kind" = default ] && stamped default requirements.lock; }
}

# A sandbox sees the system's /usr and what is unpacked here, so a tmux elsewhere does not count.
has_tmux() {
    [ -x .tools/tmux/usr/bin/tmux ] && return
    case $(readlink -f "$(command -v tmux || echo none)") in
        /usr/*) return 0 ;;
        *) return 1 ;;
    esac
}

if installed && has_tmux; then
    exit 0
fi

began=$(date +%s)
mkdir -p .tools
if command -v flock >/dev/null; then
    exec 9>.tools/setup.lock
    flock -n 9 || { say "waiting for another set-up of this directory" && flock 9; }
fi

# A background child of sh ignores Ctrl-C, so it is ended by hand; what it left is marked unfinished.
child=
stop() {
    [ -z "$child" ] || kill "$child" 2>/dev/null || true
    echo "setup: interrupted; run the same command again to go on." >&2
    exit 130
}
trap stop INT TERM HUP

# --- Python -----------------------------------------------------------------------------------------

# Prints the real interpreter behind a name. Asking it to run is the only sure test: a pyenv shim exists
# for every version installed and fails for those not selected.
interpreter() {
    "$1" -c '
import sys
if sys.version_info < (3, 12): sys.exit(1)
import ctypes, ensurepip, sqlite3, ssl, venv
print(getattr(sys, "_base_executable", None) or sys.executable)' 2>/dev/null </dev/null
}

find_python() {
    for name in python3.13 python3.12 python3.14 python3 python; do
        interpreter "$name" && return
    done
    for path in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-9]*/bin/python; do
        [ -x "$path" ] && interpreter "$path" && return
    done
    return 1
}

# uv can download a Python; the waits are short because most machines without one have no way out either.
get_python() {
    command -v uv >/dev/null || return 1
    UV_HTTP_TIMEOUT=30 uv python install --quiet 3.13 >>"$log" 2>&1 </dev/null || true
    path=$(uv python find '>=3.12' 2>/dev/null) && interpreter "$path"
}

# --- dependencies -----------------------------------------------------------------------------------

progress() {
    placed=$(find "$venv"/lib/python*/site-packages -maxdepth 1 -name '*.dist-info' | wc -l | tr -d ' ')
    if [ "$placed" -gt "$before" ]; then
        echo "$placed of $packages packages installed"
    else
        echo "$(grep -c -e '^Collecting' -e '^Processing' "$log") of $packages packages fetched"
    fi
}

# Runs a long command quietly, printing a sign of life every five seconds.
watched() {
    "$@" >>"$log" 2>&1 </dev/null &
    child=$!
    seconds=0
    while kill -0 "$child" 2>/dev/null; do
        sleep 1
        seconds=$((seconds + 1))
        if [ $((seconds % 5)) = 0 ]; then
            say "  $(progress)"
        fi
    done
    status=0
    wait "$child" || status=$?
    child=
    return "$status"
}

# Bytecode is left to be written at first use: most of these packages' modules are never imported.
install_with_pip() {
    watched "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --no-deps \
        --require-hashes --no-compile --progress-bar off -r "$lock"
}

install_with_uv() {
    command -v uv >/dev/null && watched uv pip install --python "$venv/bin/python" --no-deps \
        --require-hashes -r "$lock"
}

install_packages() {
    if [ -e "$state/unfinished" ]; then
        say "the last set-up was interrupted: making .venv again"
        rm -rf "$venv"
    elif [ -d "$venv" ] && [ ! -d "$state" ]; then
        kept=$venv.kept-$(date +%Y%m%d-%H%M%S)
        mv "$venv" "$kept"
        say "there was a .venv that set-up did not make: kept as $kept"
    elif [ -d "$venv" ] && { [ "$(cat "$state/home")" != "$(pwd -P)" ] || ! interpreter "$venv/bin/python" >/dev/null; }; then
        say "the directory has moved or its Python is gone: making .venv again"
        rm -rf "$venv"
    fi

    if [ ! -d "$venv" ]; then
        python=$(find_python) || python=$(get_python) ||
            give_up "no Python 3.12 or newer was found (on PATH, under pyenv, or by uv): install one," \
                "for example with 'pyenv install 3.12' or 'uv python install 3.12', and run this again."
        say "Python: $("$python" -V 2>&1 | cut -d' ' -f2) at $python"
        mkdir -p "$state"
        touch "$state/unfinished"
        "$python" -m venv "$venv" >>"$log" 2>&1 || give_up "$python could not make .venv: see $log."
        pwd -P >"$state/home"
    fi
    touch "$state/unfinished"

    packages=$(grep -c '^[a-z].*==' "$lock")
    before=$(find "$venv"/lib/python*/site-packages -maxdepth 1 -name '*.dist-info' | wc -l | tr -d ' ')
    say "dependencies: $packages packages of $lock"
    install_with_uv || install_with_pip || {
        tail -n 5 "$log" >&2
        give_up "the packages of $lock could not be installed (above are the last lines of $log):" \
            "check the network and run this again."
    }
    # Nothing is built in isolation: that would fetch a build backend that no lock pins.
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
        -e . >>"$log" 2>&1 </dev/null || give_up "termrl itself could not be installed into .venv: see $log."
    fingerprint "$lock" >"$state/$kind"
    rm "$state/unfinished"
    say "installed: $(du -sm "$venv" | cut -f1) MB in .venv"
}

# --- tmux -------------------------------------------------------------------------------------------

# An ordinary user can't refresh the system's package lists, but can keep lists of their own.
own_apt() {
    apt-get -q -o Dir::State::lists="$project/.tools/apt/lists" -o Dir::Cache="$project/.tools/apt/cache" "$@"
}

# Only what a minimal Debian may lack; libc and ncurses are in every one. A release has one libevent of the two.
download_tmux() {
    "$@" download tmux && "$@" download libutempter0 &&
        { "$@" download libevent-core-2.1-7 || "$@" download libevent-core-2.1-7t64; }
}

unpack_tmux() {
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || return 1
    rm -rf .tools/tmux.part
    mkdir -p .tools/tmux.part/packages .tools/apt/lists/partial .tools/apt/cache/archives/partial
    (
        cd .tools/tmux.part/packages
        download_tmux apt-get -q || { own_apt update && download_tmux own_apt; }
        for file in *.deb; do
            dpkg-deb -x "$file" ..
        done
    ) >>"$log" 2>&1 </dev/null || return 1
    [ -x .tools/tmux.part/usr/bin/tmux ] || return 1
    rm -rf .tools/tmux .tools/tmux.part/packages
    mv .tools/tmux.part .tools/tmux
}

install_tmux() {
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "tmux: installing Debian's package"
        { apt-get install -y -q tmux || { apt-get update -q && apt-get install -y -q tmux; }; } \
            >>"$log" 2>&1 </dev/null && return
    fi
    say "tmux: unpacking Debian's package into .tools/tmux"
    unpack_tmux || give_up "tmux is missing and could not be installed: install it with your system's" \
        "package manager (on Debian 'apt-get install tmux') and run this again."
}

: >"$log"
installed || install_packages
has_tmux || install_tmux
say "ready"
