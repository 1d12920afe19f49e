"""The quick start over several seeds, with its controls: does reinforcement learning teach, and how surely?

Each seed is `termrl train config=quickstart seed=S` in a directory of its own. Beside the first seed stand
two controls: the same run with rewards shuffled within groups, and the minutes of its reinforcement learning
spent on more supervised warm-up instead, once on the same demonstrations and once on those of all families.

    .venv/bin/python bench/quickstart.py --seeds 0,1,2,3,4 [--controls] [--json] [--check]
"""

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

LIFT = 0.30
MINUTES = 10
MEMORY_GB = 4.0
SECONDS_TO_LIFE = 2.0
SECONDS_TO_SAMPLES = 15.0
SEEDS_THAT_MUST = 0.8


def memory_of_tree(pid: int) -> int:
    """Bytes of memory that a process and all below it hold, shared pages counted once."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    total, todo = 0, [pid]
    while todo:
        one = todo.pop()
        todo += children.get(one, [])
        try:
            for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
        except OSError:
            continue
    return total


def run_once(root: Path, name: str, *settings: str) -> dict[str, Any]:
    """One training run as a user would start it; what it came to, its wall time and its peak memory."""
    termrl = [sys.executable, "-m", "termrl"]
    command = [*termrl, "train", "config=quickstart", f"run_root={root}", f"run_name={name}", *settings]
    started = time.time()
    peak, alive = 0, None
    with (root / f"{name}.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ})
        ended = threading.Event()

        def watch() -> None:
            nonlocal peak, alive
            while not ended.wait(0.1 if alive is None else 2.0):
                if alive is None and os.fstat(log.fileno()).st_size:
                    alive = time.time() - started
                peak = max(peak, memory_of_tree(process.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        code = process.wait()
        ended.set()
        watcher.join()
    wall = time.time() - started
    if code:
        sys.exit(f"{' '.join(command)} ended with {code}:\n{(root / f'{name}.log').read_text()[-2000:]}")
    shown = subprocess.run(
        [*termrl, "runs", "show", str(root / name), "--json"], capture_output=True, text=True, check=True
    )
    summary: dict[str, Any] = json.loads(shown.stdout)
    return {
        **summary,
        "wall_seconds": wall,
        "peak_memory_gb": peak / 2**30,
        "seconds_to_life": alive,
        "seconds_to_samples": first_rollout(root / name) - started,
    }


def first_rollout(run: Path) -> float:
    """When the first rollout had been sampled, run and scored: later than its first sample."""
    with closing(sqlite3.connect(f"file:{run / 'run.sqlite'}?mode=ro", uri=True)) as database:
        return float(database.execute("SELECT min(finished_at) FROM rollouts").fetchone()[0])


def lift(summary: dict[str, Any], part: str = "held_out") -> float:
    rates = summary[part]
    return float(rates["after_rl"]["solve_rate"] - rates["after_warmup"]["solve_rate"])


def reached(summary: dict[str, Any]) -> bool:
    """A lift of 30 points or more, intervals apart."""
    rates = summary["held_out"]
    return lift(summary) >= LIFT and rates["after_rl"]["low"] > rates["after_warmup"]["high"]


def cell(rate: dict[str, Any] | None) -> str:
    if not rate or rate["solve_rate"] is None:
        return "-"
    return f"{rate['solve_rate']:.0%} [{rate['low']:.0%}, {rate['high']:.0%}] n={rate['n']}"


def row(label: str, summary: dict[str, Any]) -> str:
    columns = [
        cell(summary["held_out"].get("after_warmup")),
        cell(summary["held_out"].get("after_rl")),
        cell(summary["held_out_undemonstrated"].get("after_warmup")),
        cell(summary["held_out_undemonstrated"].get("after_rl")),
        cell(
            summary["held_out_families"].get("after_rl") or summary["held_out_families"].get("after_warmup")
        ),
        f"{summary['wall_seconds'] / 60:.1f} min",
        f"{summary['peak_memory_gb']:.1f} GB",
        f"{summary['seconds_to_life']:.1f} s",
        f"{summary['seconds_to_samples']:.0f} s",
    ]
    return f"| {label} | " + " | ".join(columns) + " |"


def controls(root: Path, seed: int, base: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The same seed with shuffled rewards, and with its minutes spent on supervised learning instead."""
    settings = json.loads(
        subprocess.run(
            [sys.executable, "-m", "termrl", "runs", "show", base["path"], "--json", "--settings"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )["settings"]
    epochs = settings["warmup"]["epochs"]
    more = round(epochs * (1 + base["seconds"]["train"] / base["seconds"]["warmup"]))
    return {
        "rewards shuffled within groups": run_once(root, "shuffled", f"seed={seed}", "shuffle_rewards=true"),
        "its minutes on more warm-up": run_once(
            root, "supervised", f"seed={seed}", "max_steps=0", f"warmup.epochs={more}"
        ),
        "the same, all families shown": run_once(
            root,
            "supervised-all",
            f"seed={seed}",
            "max_steps=0",
            f"warmup.epochs={more}",
            "warmup.families=none",
        ),
    }


def verdict(seeds: dict[int, dict[str, Any]], others: dict[str, dict[str, Any]]) -> list[str]:
    """What was promised and not reached."""
    missed = []
    good = [seed for seed, summary in seeds.items() if reached(summary)]
    if len(good) < SEEDS_THAT_MUST * len(seeds):
        missed.append(f"a lift of {LIFT:.0%} with intervals apart in {len(good)} of {len(seeds)} seeds only")
    slowest = max(summary["wall_seconds"] for summary in seeds.values())
    if slowest > 60 * MINUTES:
        missed.append(f"{slowest / 60:.1f} minutes for a run, not {MINUTES}")
    largest = max(summary["peak_memory_gb"] for summary in seeds.values())
    if largest > MEMORY_GB:
        missed.append(f"{largest:.1f} GB of memory, not under {MEMORY_GB:.0f}")
    dead = max(summary["seconds_to_life"] for summary in seeds.values())
    if dead > SECONDS_TO_LIFE:
        missed.append(f"{dead:.1f} s to a sign of life, not {SECONDS_TO_LIFE:.0f}")
    # The first run of all may have to compile; the promise is for the second.
    waited = max((summary["seconds_to_samples"] for summary in [*seeds.values()][1:]), default=0.0)
    if waited > SECONDS_TO_SAMPLES:
        missed.append(f"{waited:.1f} s to the first rollout, not {SECONDS_TO_SAMPLES:.0f}")
    shuffled = others.get("rewards shuffled within groups")
    if shuffled is not None and lift(shuffled) > LIFT / 3:
        missed.append(f"shuffled rewards lift the solve rate by {lift(shuffled):.0%}")
    return missed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="0,1,2,3,4", help="seeds, separated by commas")
    parser.add_argument(
        "--controls", action="store_true", help="also run the controls, beside the first seed"
    )
    parser.add_argument("--output", type=Path, help="keep the runs in this directory")
    parser.add_argument("--json", action="store_true", help="print for machines")
    parser.add_argument("--check", action="store_true", help="exit 1 if what is promised is not reached")
    arguments = parser.parse_args()
    root = arguments.output or Path(tempfile.mkdtemp(prefix="termrl-bench-"))
    root.mkdir(parents=True, exist_ok=True)
    head = (
        "| | after warm-up | after RL | undemonstrated, before | after | unseen families "
        "| time | memory | first line | first rollout |"
    )
    if not arguments.json:
        print(head, "|---" * 10 + "|", sep="\n", flush=True)
    seeds: dict[int, dict[str, Any]] = {}
    for seed in map(int, arguments.seeds.split(",")):
        seeds[seed] = run_once(root, f"seed-{seed}", f"seed={seed}")
        if not arguments.json:
            print(row(f"seed {seed}", seeds[seed]), flush=True)
    first = next(iter(seeds))
    others = controls(root, first, seeds[first]) if arguments.controls else {}
    missed = verdict(seeds, others)
    if arguments.json:
        print(json.dumps({"seeds": seeds, "controls": others, "missed": missed}))
    else:
        for label, summary in others.items():
            print(row(label, summary), flush=True)
        print(f"runs are kept in {root}")
    if arguments.check and missed:
        sys.exit("missed: " + "; ".join(missed))


if __name__ == "__main__":
    main()
