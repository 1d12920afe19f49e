"""Terminal-Bench 1 tasks (task.yaml, docker-compose.yaml, run-tests.sh, tests/) as Harbor tasks.

The conversion is Harbor's own, but for the verdict: Terminal-Bench 1 reads the results of the single tests
from what they print, and so does the tests/test.sh written here. A task counts as solved when every test
passed; each test's result stands in reward.json beside it. Results are kept in the cache by content.
"""

import contextlib
import io
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from harbor.mappers.terminal_bench import TerminalBenchMapper
from pydantic import ValidationError

from termrl.cache import cache_directory
from termrl.tasks.contents import content_digest
from termrl.tasks.errors import ConversionError, TaskError, UnwritableCacheError

_CONVERSION = "1"
"""Part of the name under which a converted task is kept: raise it when the conversion changes."""

_TEST = """\
#!/bin/bash
# Runs Terminal-Bench 1's own run-tests.sh and turns what it prints into a reward, test by test.
export TEST_DIR=/tests
mkdir -p /logs/verifier
bash /tests/run-tests.sh >/logs/verifier/tests.txt 2>&1
cat /logs/verifier/tests.txt

passed=0 total=0 in_summary=0 results=""
while IFS= read -r line; do
  line=${line%$'\\r'}
  if [[ $line == *"short test summary info"* ]]; then
    in_summary=1 passed=0 total=0 results=""
    continue
  fi
  [[ $in_summary == 1 && $line =~ ^(PASSED|XFAIL|SKIPPED|FAILED|ERROR|XPASS)\\ +(.+)$ ]] || continue
  name=${BASH_REMATCH[2]%% - *}
  name=${name##*::}
  good=0
  [[ ${BASH_REMATCH[1]} == PASSED || ${BASH_REMATCH[1]} == XFAIL || ${BASH_REMATCH[1]} == SKIPPED ]] && good=1
  passed=$((passed + good)) total=$((total + 1))
  name=${name//[^A-Za-z0-9_.\\[\\]-]/_}
  results+=", \\"test:$name\\": $good"
done </logs/verifier/tests.txt

reward=0
[[ $total -gt 0 && $passed == "$total" ]] && reward=1
echo "{\\"reward\\": $reward, \\"passed\\": $passed, \\"tests\\": $total$results}" >/logs/verifier/reward.json
"""


def converted(task_dir: Path) -> Path:
    """The Harbor task that a Terminal-Bench 1 task directory becomes; raises `ConversionError`."""
    try:
        digest = content_digest(task_dir)
        place = cache_directory() / "terminal-bench-1" / f"{digest}-{_CONVERSION}" / task_dir.name
        if not place.is_dir():
            _convert(task_dir, place)
    except OSError as error:
        raise UnwritableCacheError(
            f"The converted task {task_dir.name} cannot be written to {error.filename}: {error.strerror}; "
            "set XDG_CACHE_HOME to a directory that can be written to."
        ) from error
    return place


def _convert(task_dir: Path, place: Path) -> None:
    if not (task_dir / "run-tests.sh").is_file():
        raise ConversionError(
            f"The Terminal-Bench 1 task {task_dir} has no run-tests.sh, so nothing can grade it."
        )
    place.parent.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".converting-", dir=place.parent.parent))
    try:
        source, target = draft / "source" / task_dir.name, draft / "done" / task_dir.name
        shutil.copytree(task_dir, source, symlinks=True)
        _modernize(source, task_dir)
        _map(source, target, task_dir)
        tests = target / "tests"
        shutil.copy2(task_dir / "run-tests.sh", tests / "run-tests.sh")
        (tests / "test.sh").write_text(_TEST)
        (tests / "test.sh").chmod(0o755)
        place.parent.mkdir(exist_ok=True)
        os.rename(target, place)
    except OSError:
        # Another process was first; what it wrote is the same.
        if not place.is_dir():
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _modernize(source: Path, task_dir: Path) -> None:
    """What early Terminal-Bench 1 tasks wrote in another way, before Harbor's converter sees it."""
    path = source / "task.yaml"
    try:
        table: Any = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConversionError(f"{task_dir / 'task.yaml'} is not valid YAML: {_sentence(error)}") from error
    if not isinstance(table, dict):
        raise ConversionError(f"{task_dir / 'task.yaml'} is not a table of settings.")
    parser = table.get("parser_name", "pytest")
    if parser != "pytest":
        raise ConversionError(
            f"The Terminal-Bench 1 task {task_dir} has its tests read by {parser!r}, which is not "
            "known here; only pytest is."
        )
    descriptions = table.get("descriptions")
    if "instruction" not in table and isinstance(descriptions, list):
        texts = {each.get("key"): each.get("description") for each in descriptions if isinstance(each, dict)}
        table["instruction"] = texts.get("base") or next(iter(texts.values()), "")
        path.write_text(yaml.safe_dump(table))
    # Keystrokes for a terminal are no script: such a task is kept, without a reference solution.
    (source / "solution.yaml").unlink(missing_ok=True)


def _map(source: Path, target: Path, task_dir: Path) -> None:
    refusal = f"The Terminal-Bench 1 task {task_dir} cannot be converted: "
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            result = TerminalBenchMapper().map(source.parent, target.parent)
    except (ValidationError, ValueError, yaml.YAMLError) as error:
        raise ConversionError(refusal + _sentence(error)) from error
    if result.failed:
        _, reason = result.failed[0]
        raise ConversionError(refusal + _sentence(reason).replace(str(source), str(task_dir)))
    if not target.is_dir():
        raise TaskError(refusal + "Harbor's converter passed it over.")


def _sentence(error: object) -> str:
    return " ".join(str(error).split()).rstrip(".") + "."
