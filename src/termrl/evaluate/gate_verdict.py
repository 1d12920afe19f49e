"""What a task was found to be, from the attempts at it.

broken     the oracle never passes, or there is nothing to pass in (it cannot be built, the tests fail to run)
trivial    doing nothing passes, every time
flaky      the oracle, or doing nothing, passes now and then
forgeable  a cheating agent passes
unproven   there is no oracle, so nobody knows
sound      none of these
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from termrl.evaluate.gate_attempt import PROCESSES, SIGNS, SYSTEM_FILES
from termrl.evaluate.gate_subjects import CHEAT, LONE_ORACLE, NO_OP, ORACLE
from termrl.rollout.record import Rollout


class Fitness(StrEnum):
    BROKEN = "broken"
    TRIVIAL = "trivial"
    FLAKY = "flaky"
    FORGEABLE = "forgeable"
    UNPROVEN = "unproven"
    SOUND = "sound"


UNFIT = frozenset({Fitness.BROKEN, Fitness.TRIVIAL, Fitness.FLAKY, Fitness.FORGEABLE})

type Attempts = Mapping[str, Sequence[Rollout]]
"""The attempts at one task, by the name of the subject."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict on one task, the reason in a sentence, and what was seen of it."""

    task_name: str
    fitness: Fitness
    reason: str
    evidence: str
    oracle: str
    no_op: str
    cheats: str
    needs_processes: bool | None
    processes: tuple[str, ...]
    system_files: tuple[str, ...]


def judge_task(task_name: str, attempts: Attempts) -> Finding:
    """The verdict from all attempts at a task; the gravest finding is the one that counts."""
    fitness, reason, evidence = _verdict(attempts)
    oracles = attempts.get(ORACLE.name, ())
    processes = sorted({each for rollout in oracles for each in _tag(rollout, PROCESSES)})
    files = sorted({each for rollout in oracles for each in _tag(rollout, SYSTEM_FILES)})
    return Finding(
        task_name=task_name,
        fitness=fitness,
        reason=reason,
        evidence=evidence,
        oracle=_count(oracles),
        no_op=_count(attempts.get(NO_OP.name, ())),
        cheats=_forged_count(attempts),
        needs_processes=_needs_processes(attempts, bool(processes)),
        processes=tuple(processes),
        system_files=tuple(files),
    )


def _verdict(attempts: Attempts) -> tuple[Fitness, str, str]:
    oracles, idle = attempts.get(ORACLE.name, ()), attempts.get(NO_OP.name, ())
    failed = [rollout for rollout in oracles if not rollout.solved]
    if oracles and len(failed) == len(oracles):
        return Fitness.BROKEN, _how_it_broke(failed[0]), failed[0].detail
    unscored = [rollout for rollout in idle if not rollout.outcome.scored]
    if unscored and len(unscored) == len(idle):
        return Fitness.BROKEN, _how_it_broke(unscored[0]), unscored[0].detail
    passed = [rollout for rollout in idle if rollout.solved]
    if passed and len(passed) == len(idle):
        return Fitness.TRIVIAL, f"doing nothing passes {_count(idle)} times", ""
    if failed:
        return Fitness.FLAKY, f"the oracle passes {_count(oracles)} times", failed[0].detail
    if passed:
        return Fitness.FLAKY, f"doing nothing passes {_count(idle)} times", ""
    forged = [
        name
        for name, rollouts in _cheats(attempts).items()
        if any(_unseen(each, attempts) for each in rollouts)
    ]
    if forged:
        names = ", ".join(name.removeprefix(CHEAT) for name in forged)
        return Fitness.FORGEABLE, f"cheating agents pass: {names}", ""
    if not oracles:
        return Fitness.UNPROVEN, "there is no solution/solve.sh, so nothing shows that it can be solved", ""
    return Fitness.SOUND, "", ""


def _how_it_broke(rollout: Rollout) -> str:
    if rollout.outcome.scored:
        return "the oracle never passes"
    return {
        "build_failed": "its sandbox cannot be built",
        "verifier_failed": "its tests end without a reward",
    }.get(rollout.outcome.value, f"its attempts end as {rollout.outcome.value}")


def _needs_processes(attempts: Attempts, left_some: bool) -> bool | None:
    """None where it isn't known: the oracle did not pass, or the lone oracle was never asked."""
    if not any(rollout.solved for rollout in attempts.get(ORACLE.name, ())):
        return None
    if not left_some:
        return False
    alone = attempts.get(LONE_ORACLE.name, ())
    return not any(rollout.solved for rollout in alone) if alone else None


def _unseen(rollout: Rollout, attempts: Attempts) -> bool:
    """Whether a cheating agent passes: with a reward, and no change that the task itself does not make."""
    honest = [each for name in (ORACLE.name, NO_OP.name) for each in attempts.get(name, ())]
    own = {sign for each in honest for sign in _tag(each, SIGNS)}
    return rollout.solved and not set(_tag(rollout, SIGNS)) - own


def _forged_count(attempts: Attempts) -> str:
    rollouts = [rollout for each in _cheats(attempts).values() for rollout in each]
    return f"{sum(_unseen(each, attempts) for each in rollouts)} of {len(rollouts)}" if rollouts else "-"


def _tag(rollout: Rollout, name: str) -> list[str]:
    values: list[str] = json.loads(rollout.tags.get(name, "[]"))
    return values


def _cheats(attempts: Attempts) -> dict[str, Sequence[Rollout]]:
    return {name: rollouts for name, rollouts in attempts.items() if name.startswith(CHEAT)}


def _count(rollouts: Sequence[Rollout]) -> str:
    return f"{sum(rollout.solved for rollout in rollouts)} of {len(rollouts)}" if rollouts else "-"
