"""What a run came to, as one plain dict: what `termrl runs show --json` prints and the table is made from.

run, path, kind, status, model_name, seed, steps   status is "done" or "stopped"
held_out                  base | after_warmup | after_rl -> solve_rate, low, high, n, tasks, excluded
held_out_demonstrated     the same over the families that the warm-up had demonstrations of
held_out_undemonstrated   the same over those it had none of
held_out_families         the same over families that training never saw
curve                     [{step, solve_rate, reward, n}] of the training rollouts
seconds                   phase -> seconds, and total
tokens                    prompt, sampled, trained
spent                     tokens by kind, sandbox seconds, seconds, and their cost in dollars, as metered
rollouts                  n, scored, excluded: {outcome: count}
checkpoint                where the last weights are
picture                   the learning curve, once it is drawn
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

from termrl.evaluate.held_out import rate_of
from termrl.rollout.outcome import Outcome
from termrl.rollout.record import Rollout
from termrl.store import Run

EVALUATIONS = ("base", "after_warmup", "after_rl")
EVALUATION_STAGE = "eval-"
PICTURE = "learning-curve.png"
LAST_PHASE = "eval-after_rl"


def summarize(run: Run) -> dict[str, Any]:
    demonstrated = set(run.fact("demonstrated_families", []))
    evaluations = {
        name: rollouts for name in EVALUATIONS if (rollouts := _last_evaluation(run, EVALUATION_STAGE + name))
    }

    def rates(belongs: Callable[[Rollout], bool]) -> dict[str, Any]:
        return {
            name: _rate(chosen)
            for name, rollouts in evaluations.items()
            if (chosen := [rollout for rollout in rollouts if belongs(rollout)])
        }

    def known(rollout: Rollout) -> bool:
        return rollout.tags.get("set") == "held_out"

    steps = run.steps()
    phases = run.phases()
    checkpoints = run.checkpoints()
    totals = run.token_totals().values()
    picture = run.path / PICTURE
    return {
        "run": run.name,
        "path": str(run.path),
        "kind": run.kind,
        "status": "done" if phases.get(LAST_PHASE, {}).get("done") else "stopped",
        "model_name": run.settings.get("model_name"),
        "seed": run.settings.get("seed"),
        "steps": len(steps),
        "held_out": rates(known),
        "held_out_demonstrated": rates(lambda r: known(r) and r.tags.get("family") in demonstrated),
        "held_out_undemonstrated": rates(lambda r: known(r) and r.tags.get("family") not in demonstrated),
        "held_out_families": rates(lambda r: r.tags.get("set") == "held_out_families"),
        "curve": [
            {
                "step": step,
                "solve_rate": metrics["solve_rate"],
                "reward": metrics["reward"],
                "n": metrics["scored"],
            }
            for step, metrics in steps.items()
        ],
        "seconds": {name: phase["seconds"] for name, phase in phases.items()}
        | {"total": sum(phase["seconds"] for phase in phases.values())},
        "tokens": {
            "prompt": sum(total["prompt"] for total in totals),
            "sampled": sum(total["sampled"] for total in totals),
            "trained": sum(metrics["train_tokens"] for metrics in steps.values()),
        },
        "spent": run.fact("spent"),
        "rollouts": _rollouts(run),
        "checkpoint": {"state": checkpoints[-1].state_path, "sampler": checkpoints[-1].sampler_path}
        if checkpoints
        else None,
        "picture": str(picture) if picture.is_file() else None,
    }


def _last_evaluation(run: Run, stage: str) -> list[Rollout]:
    rollouts = run.rollouts(stage, with_turns=False)
    last = max((place.step for place in rollouts), default=0)
    return [rollout for place, rollout in rollouts.items() if place.step == last]


def _rate(rollouts: list[Rollout]) -> dict[str, Any]:
    excluded = sum(not rollout.outcome.scored for rollout in rollouts)
    return {**rate_of(rollouts).to_dict(), "excluded": excluded}


def _rollouts(run: Run) -> dict[str, Any]:
    outcomes: Counter[Outcome] = Counter(
        rollout.outcome
        for stage in run.stages()
        for rollout in run.rollouts(stage, with_turns=False).values()
    )
    excluded = {outcome.value: count for outcome, count in outcomes.items() if not outcome.scored}
    n = sum(outcomes.values())
    return {"n": n, "scored": n - sum(excluded.values()), "excluded": excluded}
