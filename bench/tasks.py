"""Loading 3,500 task directories: how long it takes and how much memory, in a process that does nothing else.

The tasks are those of a large dataset in shape: a task.toml, an instruction, a Dockerfile, a solution, tests.
It is compared with Harbor's own `Task` on the same directories, which reads the same files.

    .venv/bin/python bench/tasks.py [--tasks 3500] [--json] [--check]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MOST_SECONDS = 3.0
MOST_MEGABYTES = 200.0
FILES = {
    "task.toml": (
        'version = "1.0"\n[metadata]\ndifficulty = "medium"\ncategory = "files"\ntags = ["a", "b"]\n'
        "[agent]\ntimeout_sec = 900.0\n[verifier]\ntimeout_sec = 300.0\n"
        '[environment]\ncpus = 1\nmemory = "2G"\nstorage = "10G"\n'
    ),
    "instruction.md": "Make the file /app/out hold the number of lines of /app/in.\n" * 20,
    "environment/Dockerfile": "FROM debian:12\nWORKDIR /app\nCOPY in /app/in\n",
    "environment/in": "a line\n" * 200,
    "solution/solve.sh": "#!/bin/bash\nwc -l < /app/in > /app/out\n",
    "tests/test.sh": "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n",
}
MEASURE = """
import json, re, sys, time
{imports}
began, cpu = time.perf_counter(), time.process_time()
count = {load}
seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
peak = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
print(json.dumps({{"tasks": count, "seconds": seconds, "cpu_seconds": cpu, "megabytes": peak}}))
"""
OURS = "from termrl.tasks import load_harbor_tasks", "len(load_harbor_tasks(sys.argv[1]))"
HARBORS = (
    "from pathlib import Path\nfrom harbor.models.task.task import Task",
    "len([Task(path) for path in sorted(Path(sys.argv[1]).iterdir())])",
)


def measure(program: tuple[str, str], directory: Path) -> dict[str, float]:
    """What a fresh process takes to load them once its modules are imported."""
    imports, load = program
    quiet = {"HARBOR_TELEMETRY": "off", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    ended = subprocess.run(
        [sys.executable, "-c", MEASURE.format(imports=imports, load=load), str(directory)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | quiet,
    )
    found: dict[str, float] = json.loads(ended.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=3500, help="task directories")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--check", action="store_true", help="exit 1 where a promised figure is missed")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="termrl-tasks-") as folder:
        for number in range(arguments.tasks):
            for name, text in FILES.items():
                path = Path(folder) / f"task-{number:05d}" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        report: dict[str, Any] = {
            "ours": measure(OURS, Path(folder)),
            "harbor": measure(HARBORS, Path(folder)),
        }
    ours, harbors = report["ours"], report["harbor"]
    report["speedup"] = harbors["cpu_seconds"] / ours["cpu_seconds"]
    if arguments.json:
        print(json.dumps(report, indent=1))
    else:
        print(
            f"{ours['tasks']} tasks: {ours['seconds']:.2f} s ({ours['cpu_seconds']:.2f} s of CPU) and "
            f"{ours['megabytes']:.0f} MB; Harbor's Task: {harbors['seconds']:.2f} s "
            f"({harbors['cpu_seconds']:.2f} s of CPU) and {harbors['megabytes']:.0f} MB"
        )
    missed = []
    if ours["seconds"] >= MOST_SECONDS:
        missed.append(f"{ours['seconds']:.2f} s, not under {MOST_SECONDS:g}")
    if ours["megabytes"] >= MOST_MEGABYTES:
        missed.append(f"{ours['megabytes']:.0f} MB, not under {MOST_MEGABYTES:g}")
    if arguments.check and missed:
        print("; ".join(missed))
        sys.exit(1)


if __name__ == "__main__":
    main()
