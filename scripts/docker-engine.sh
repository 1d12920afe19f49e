#!/usr/bin/env bash
# A Docker engine for tests, where none runs: `scripts/docker-engine.sh run COMMAND...` brings one up (with what it
# needs installed: Debian, as root), runs the command with DOCKER_HOST set, and takes down what it brought up.
# An engine that already answers is used as it is. `up` and `down` do the two halves by hand. With
# TERMRL_ENGINE_DISK=256m the engine of `up` has a disk of that size, in memory, which may be filled without harm.
set -euo pipefail

home=${TERMRL_ENGINE_HOME:-${TMPDIR:-/tmp}/termrl-docker-engine}
socket="unix://$home/docker.sock"
plugins=/usr/libexec/docker/cli-plugins

say() { echo "docker-engine: $*" >&2; }
die() { say "$*"; exit 1; }

install_packages() {
    local missing=()
    command -v dockerd >/dev/null || missing+=(docker.io)
    command -v docker >/dev/null || missing+=(docker-cli)
    command -v iptables >/dev/null || missing+=(iptables)
    command -v docker-registry >/dev/null || missing+=(docker-registry)
    command -v newuidmap >/dev/null || missing+=(uidmap)
    # Where the client is part of docker.io there is no package docker-cli.
    if [ ${#missing[@]} -gt 0 ]; then
        [ "$(id -u)" = 0 ] || die "dockerd is missing, and installing it takes root: apt-get install ${missing[*]}"
        say "installing ${missing[*]}"
        apt-get update -qq || true
        for package in "${missing[@]}"; do
            DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$package" >/dev/null 2>&1 ||
                [ "$package" = docker-cli ] || die "apt-get could not install $package"
        done
    fi
    docker compose version >/dev/null 2>&1 || install_compose
}

# Compose v2 is in Debian from trixie on. On an older one its package is taken from there, by the same mirror.
install_compose() {
    say "installing docker compose"
    if DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends docker-compose-v2 >/dev/null 2>&1; then
        docker compose version >/dev/null 2>&1 && return
    fi
    local apt=$home/apt release=trixie
    mkdir -p "$apt"/{lists/partial,archives/partial,parts} "$plugins"
    local mirror
    mirror=$(apt-get indextargets --format '$(SITE)' 'Origin: Debian' 2>/dev/null | grep '/debian$' | head -1 || true)
    [ -n "$mirror" ] || mirror=$(grep -rhoE 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list* | head -1 | tr -d ' ')
    [ -n "$mirror" ] || die "no Debian mirror is configured, so compose can't be installed"
    echo "deb $mirror $release main" >"$apt/sources.list"
    local options=(-o "Dir::Etc::SourceList=$apt/sources.list" -o "Dir::Etc::SourceParts=$apt/parts"
        -o "Dir::State::Lists=$apt/lists" -o "Dir::Cache::Archives=$apt/archives" -o "APT::Sandbox::User=root")
    apt-get "${options[@]}" -qq update
    (cd "$apt" && apt-get "${options[@]}" -qq download docker-compose)
    dpkg-deb -x "$apt"/docker-compose_*.deb "$apt/unpacked"
    local program
    program=$(find "$apt/unpacked" -type f -name docker-compose -size +1M | head -1)
    [ -n "$program" ] || die "Debian's docker-compose package holds no program"
    install -m 755 "$program" "$plugins/docker-compose"
    docker compose version >/dev/null || die "docker compose does not run here"
}

up() {
    install_packages
    mkdir -p "$home"
    if [ -f "$home/dockerd.pid" ] && kill -0 "$(cat "$home/dockerd.pid")" 2>/dev/null; then
        return
    fi
    say "starting dockerd in $home"
    if [ -n "${TERMRL_ENGINE_DISK:-}" ]; then
        mkdir -p "$home/data"
        mount -t tmpfs -o "size=$TERMRL_ENGINE_DISK" termrl-engine-disk "$home/data"
    fi
    [ -e /sys/class/net/docker0 ] || touch "$home/made-bridge"
    setsid dockerd --host "$socket" --data-root "$home/data" --exec-root "$home/exec" \
        --pidfile "$home/dockerd.pid" >"$home/dockerd.log" 2>&1 &
    for _ in $(seq 150); do
        DOCKER_HOST=$socket docker info >/dev/null 2>&1 && return
        sleep 0.2
    done
    tail -20 "$home/dockerd.log" >&2
    die "dockerd did not come up"
}

down() {
    if [ -f "$home/dockerd.pid" ]; then
        local pid
        pid=$(cat "$home/dockerd.pid")
        DOCKER_HOST=$socket docker ps -aq 2>/dev/null | xargs -r env DOCKER_HOST="$socket" docker rm -f >/dev/null 2>&1 || true
        kill "$pid" 2>/dev/null || true
        for _ in $(seq 100); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.1
        done
    fi
    if [ -e "$home/made-bridge" ] && command -v ip >/dev/null; then
        ip link delete docker0 2>/dev/null || true
    fi
    # What it mounted goes with it; the rest is a directory of ours.
    grep -o " $home/[^ ]*" /proc/mounts | sort -r | xargs -r umount -l 2>/dev/null || true
    rm -rf "$home"
}

case ${1:-} in
    up) up && echo "export DOCKER_HOST=$socket" ;;
    down) down ;;
    run)
        shift
        if docker info >/dev/null 2>&1 && docker compose version >/dev/null 2>&1; then
            install_packages
            exec "$@"
        fi
        home=$home-$$ # so that two at once don't take each other's down
        socket="unix://$home/docker.sock"
        trap down EXIT
        up
        DOCKER_HOST=$socket "$@"
        ;;
    *) die "usage: scripts/docker-engine.sh run COMMAND... | up | down" ;;
esac
