"""The line that a rollout's end prints: which attempt at which task, how it ended, where the time went."""

from termrl.rollout.record import Rollout


def rollout_line(rollout: Rollout, attempt: int, passed: bool | None) -> str:
    """`[task:attempt] PASS reward 1.0 in 67s (setup=2.1s agent=61.0s [model=55.3s/9 turns] verifier=3.9s)`"""
    time, used = rollout.timings, rollout.used
    name = rollout.task_name.rpartition("/")[2]
    if passed is None:
        result = f"EXCLUDED {rollout.outcome.value}"
    else:
        result = f"{'PASS' if passed else 'FAIL'} reward {round(rollout.reward or 0.0, 3)}"
        if rollout.outcome.value not in ("solved", "failed"):
            result += f" {rollout.outcome.value}"
    turns = f"{used.turns} turn{'s' * (used.turns != 1)}"
    line = (
        f"[{name}:{attempt}] {result} in {time.total:.0f}s (setup={time.setup:.1f}s agent={time.agent:.1f}s "
        f"[model={time.model:.1f}s/{turns}] verifier={time.verifier:.1f}s)"
    )
    why = rollout.detail.strip().partition("\n")[0]
    return f"{line}: {why[:200]}" if passed is None and why else line
