# `make` alone lists the targets. Every target that needs the project set up sets it up first.
.DEFAULT_GOAL := help
.PHONY: help quickstart setup setup-dev test test-all docker-tests lint types unit lock docs bench

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' $(MAKEFILE_LIST) | awk -F'\t' '{printf "make %-12s %s\n", $$1, $$2}'

quickstart: setup  ## set everything up, then train: a model learns to use a terminal in minutes
	@.venv/bin/termrl train config=quickstart

setup:  ## find Python, make .venv, install the locked dependencies, see to tmux
	@scripts/setup.sh

setup-dev:
	@scripts/setup.sh dev

test: lint types unit  ## set everything up, then lint, check types and run every test

test-all: test docker-tests  ## what `make test` runs, and what needs Docker (brought up where none runs)

docker-tests: setup-dev  ## the tests that need a Docker engine; one is brought up where none runs
	@scripts/docker-engine.sh run .venv/bin/pytest -m docker

lint: setup-dev  ## ruff: style and format
	@.venv/bin/ruff check
	@.venv/bin/ruff format --check

types: setup-dev  ## mypy, strict
	@.venv/bin/mypy

unit: setup-dev  ## pytest, in two halves side by side
	@scripts/unit.sh

bench: setup  ## the quick start over five seeds and its controls, as a table (about an hour and a half)
	@.venv/bin/python bench/quickstart.py --controls

docs: setup  ## write docs/settings.md from the settings themselves
	@.venv/bin/python -m termrl.settings.table > docs/settings.md

lock:  ## pin what pyproject.toml asks for: versions and hashes, no addresses
	@scripts/lock.sh
