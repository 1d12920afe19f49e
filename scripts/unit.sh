#!/bin/sh
# Runs the tests in two halves side by side, which takes two cores well: many tests wait more than they compute.
# Arguments are passed on to pytest. What the second half printed is shown when the first has ended.
set -u
cd "$(dirname "$0")/.."
second_half="tests/agents tests/evaluate tests/policy tests/rollout tests/sandbox tests/tasks"
log=.tools/tests.log
mkdir -p .tools

# shellcheck disable=SC2086 # the list is words
.venv/bin/pytest -o cache_dir=.pytest_cache/second "$@" $second_half >"$log" 2>&1 </dev/null &
second=$!
trap 'kill "$second" 2>/dev/null; exit 130' INT TERM HUP

ignored=$(for directory in $second_half; do printf -- '--ignore=%s ' "$directory"; done)
# shellcheck disable=SC2086
.venv/bin/pytest "$@" $ignored tests
first_status=$?
echo "unit: the second half of the tests is under way or done; its output follows"
wait "$second"
second_status=$?
cat "$log"
[ "$first_status" = 0 ] && [ "$second_status" = 0 ]
