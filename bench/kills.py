"""`kill -9` of a real training run and its engine at random moments, many times over, then what must hold.

Each run is `termrl train` with sandboxes and the embedded engine, killed with all it started and begun again.
Afterwards: no stored rollout was sampled again or lost, no step was applied twice, the final weights are bit
for bit those of training on the stored rollouts without a break, and, on-policy, those of a run never killed.

    .venv/bin/python bench/kills.py [--kills 50] [--steps 20] [--modes sync,async] [--json] [--check]
"""

import argparse
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

from safetensors.numpy import load_file

from termrl.errors import UserError
from termrl.store import Place, Run

GROUPS, MEMBERS = 2, 3
MODES = {"sync": (), "async": ("max_steps_off_policy=2", "partial_rollouts=true")}
SECONDS = 600


def command(root: Path, name: str, steps: int, mode: str) -> list[str]:
    return [
        *(sys.executable, "-m", "termrl", "train", f"run_root={root}", f"run_name={name}"),
        f"max_steps={steps}",
        f"batch_size={GROUPS}",
        f"group_size={MEMBERS}",
        "save_every=3",
        "max_turns=2",
        "max_tokens=48",
        "learning_rate=1e-3",
        "remove_constant_reward_groups=false",
        "eval_dataset=none",
        "eval_dataset_families=none",
        "n_parallel_envs=4",
        *MODES[mode],
    ]


def start(root: Path, name: str, steps: int, mode: str) -> subprocess.Popen[bytes]:
    with (root / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            command(root, name, steps, mode), stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )


def finish(root: Path, name: str, steps: int, mode: str) -> None:
    process = start(root, name, steps, mode)
    if process.wait(timeout=SECONDS * max(steps, 1)):
        sys.exit(f"the run {name} ended with an error:\n{(root / f'{name}.log').read_text()[-3000:]}")


def stored(path: Path) -> dict[Place, float]:
    """The training rollouts on disk, each with the moment it was committed."""
    try:
        with Run.open(path) as run:
            return run.committed("train")
    except UserError:
        return {}


def kill_at_random(root: Path, name: str, steps: int, mode: str, most: int, random: Random) -> bool:
    """Begins the run and kills it, a few rollouts from now and a moment later; False if it ended before."""
    process = start(root, name, steps, mode)
    goal = len(stored(root / name)) + random.randint(0, most)
    began = time.monotonic()
    while len(stored(root / name)) < goal and process.poll() is None:
        if time.monotonic() - began > SECONDS:
            sys.exit(f"the run {name} stood still:\n{(root / f'{name}.log').read_text()[-3000:]}")
        time.sleep(0.02)
    # The next moment may be anywhere: in a rollout, in a transaction, in an update, in a checkpoint.
    time.sleep(random.random() * random.choice((0.05, 0.3, 1.0)))
    ended = process.poll() is not None
    if not ended:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return not ended


def weights(path: Path, steps: int) -> dict[str, bytes]:
    """Every tensor of the last checkpoint, weights and optimizer, bit by bit."""
    with Run.open(path) as run:
        last = run.checkpoints()[-1]
    if last.step != steps:
        sys.exit(f"{path} ended at step {last.step}, not {steps}")
    name = last.state_path.rpartition("/")[2]
    model = last.state_path.removeprefix("tinker://").partition("/")[0]
    files = [file for file in (path / "engine").rglob(f"weights/{name}.safetensors") if model in str(file)]
    files = files or list((path / "engine").rglob(f"weights/{name}.safetensors"))
    return {key: tensor.tobytes() for key, tensor in load_file(files[0]).items()}


def replayed(root: Path, name: str, steps: int, mode: str) -> dict[str, bytes]:
    """The weights of a run that has all the rollouts from the start and trains on them without a break."""
    copy = root / f"{name}-replayed"
    shutil.copytree(root / name, copy)
    database = sqlite3.connect(copy / "run.sqlite")
    with database:
        database.execute("DELETE FROM checkpoints WHERE step > 0")
        database.execute("DELETE FROM steps")
        database.execute("DELETE FROM phases")
    database.close()
    before = stored(copy)
    finish(root, copy.name, steps, mode)
    if stored(copy) != before:
        sys.exit("replaying the stored rollouts sampled others")
    return weights(copy, steps)


def check(root: Path, mode: str, kills: int, steps: int, random: Random) -> dict[str, Any]:
    name = f"{mode}-killed"
    problems: list[str] = []
    before: dict[Place, float] = {}
    killed = 0
    most = steps * GROUPS * MEMBERS // (kills + 1)
    while killed < kills and kill_at_random(root, name, steps, mode, most, random):
        killed += 1
        now = stored(root / name)
        if not before.items() <= now.items():
            problems.append("a stored rollout was lost or sampled again")
        before = now
        print(f"{mode}: killed {killed} times, {len(now)} rollouts are stored", file=sys.stderr, flush=True)
    finish(root, name, steps, mode)
    after = stored(root / name)
    if not before.items() <= after.items():
        problems.append("a stored rollout was lost or sampled again")
    with Run.open(root / name) as run:
        trained = [number for step in range(steps) for number in run.ledger.batch(step)]
        if (
            sorted(run.steps()) != list(range(steps))
            or len(trained) != len(set(trained))
            or (len(trained) != steps * GROUPS)
        ):
            problems.append("a step or a group was trained twice or left out")
    if weights(root / name, steps) != replayed(root, name, steps, mode):
        problems.append("the weights are not those of training on the stored rollouts without a break")
    if mode == "sync":
        finish(root, "sync-whole", steps, mode)
        if weights(root / name, steps) != weights(root / "sync-whole", steps):
            problems.append("the weights are not those of the run that was never killed")
    return {"mode": mode, "kills": killed, "steps": steps, "rollouts": len(after), "problems": problems}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50, help="kills of each mode")
    parser.add_argument("--steps", type=int, default=20, help="steps of each run")
    parser.add_argument("--modes", default="sync,async", help="which of sync and async")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--check", action="store_true", help="exit 1 where something did not hold")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="termrl-kills-") as directory:
        reports = [
            check(Path(directory), mode, arguments.kills, arguments.steps, Random(f"{arguments.seed}/{mode}"))
            for mode in arguments.modes.split(",")
        ]
    if arguments.json:
        print(json.dumps(reports, indent=1))
    for report in reports:
        held = "; ".join(report["problems"]) or "nothing lost, nothing repeated, the weights bit-equal"
        print(f"{report['mode']}: {report['kills']} kills over {report['steps']} steps: {held}")
    if arguments.check and any(report["problems"] for report in reports):
        sys.exit(1)


if __name__ == "__main__":
    main()
