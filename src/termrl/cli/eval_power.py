"""`termrl eval power`: how many attempts at each task it takes to see a difference."""

import json
from collections.abc import Mapping
from pathlib import Path

from termrl.cli.arguments import UsageError, parse, whole_number
from termrl.cli.runs_list import DEFAULT_ROOT

ATTEMPTS_SHOWN = (1, 2, 4, 8, 16, 32)


def help_text() -> str:
    return "\n".join(
        [
            "usage: termrl eval power [RUN | tasks=N rate=R] difference=POINTS",
            "                         [power=0.8] [alpha=0.05] [spread=POINTS] [correlation=0.5] [--json]",
            "",
            "How many attempts at each task two models need, on the same tasks, for a difference of so many",
            "points between their pass rates to be seen (two-sided test at alpha, with the chance `power`).",
            "",
            "  RUN           an evaluation (a run, or a results.json) to take tasks, rate and how much",
            "                attempts at one task vary from; or say tasks= and rate= (0 to 1) yourself",
            "  spread        how much the tasks' own changes differ, in points (standard deviation); as",
            "                large as the difference unless given. 0 = every task changes alike",
            "  correlation   how alike attempts at one task are where no RUN with two attempts or more says",
        ]
    )


def run(arguments: list[str]) -> int:
    given = parse(
        arguments,
        words=["RUN"],
        options=["tasks", "rate", "difference", "power", "alpha", "spread", "correlation", "run_root"],
        flags=["json"],
    )
    options = given.options
    if "difference" not in options:
        raise UsageError("Say how large a difference should be seen, in points: difference=5.")
    difference = _number(options, "difference", 0, low=0, high=100, open_low=True) / 100
    power = _number(options, "power", 0.8, low=0, high=1, open_low=True)
    alpha = _number(options, "alpha", 0.05, low=0, high=1, open_low=True)
    spread = _number(options, "spread", 0, low=0, high=100) / 100 if "spread" in options else None

    from termrl.evaluate.power import CORRELATION, Variation, chance_to_see, needed_attempts

    if given.words:
        from termrl.cli.eval_compare import read_evaluation
        from termrl.evaluate.results import passed_by_task

        results = read_evaluation(given.words[0], Path(options.get("run_root", DEFAULT_ROOT)).expanduser())
        table = {task: passed for task, passed in passed_by_task(results).items() if passed}
        if not table:
            raise UsageError(f"{given.words[0]} has no scored rollout: say tasks= and rate= instead.")
        variation = Variation.measured(table)
    else:
        if "tasks" not in options or "rate" not in options:
            raise UsageError("Name an evaluation, or say how many tasks and what rate: tasks=89 rate=0.3.")
        tasks = whole_number(options, "tasks", 0)
        if tasks < 1:
            raise UsageError("tasks is 0: it takes at least one.")
        rate = _number(options, "rate", 0, low=0, high=1)
        correlation = _number(options, "correlation", CORRELATION, low=0, high=1)
        variation = Variation.assumed(rate, tasks, correlation)
    answer = needed_attempts(variation, difference, spread=spread, alpha=alpha, power=power)
    chances = {
        attempts: chance_to_see(variation, difference, attempts, spread=spread, alpha=alpha)
        for attempts in ATTEMPTS_SHOWN
    }
    if "json" in given.flags:
        report = {
            "tasks": variation.tasks,
            "rate": variation.rate,
            "within_task_variance": variation.within,
            "difference": difference,
            "spread": difference if spread is None else spread,
            "alpha": alpha,
            "power": power,
            "attempts": answer.attempts,
            "tasks_needed_with_one_attempt": answer.tasks_needed,
            "smallest_visible_difference": answer.visible,
            "power_by_attempts": chances,
        }
        print(json.dumps(report, indent=1))
        return 0
    print(
        f"{variation.tasks} tasks, pass rate {variation.rate:.1%}, attempts at one task vary by "
        f"{variation.within**0.5:.2f} (standard deviation)"
    )
    if answer.attempts is None:
        print(
            f"No number of attempts at {variation.tasks} tasks shows {100 * difference:g} points with a "
            f"chance of {power:.0%}: the tasks themselves differ too much. The least that could be seen is "
            f"{100 * answer.visible:.1f} points; {answer.tasks_needed} tasks would do with one attempt each."
        )
    else:
        print(
            f"{answer.attempts} attempts at each task, for each model, show {100 * difference:g} points "
            f"with a chance of {power:.0%} (alpha {alpha:g})."
        )
    for attempts, chance in chances.items():
        print(f"  {attempts:>3} attempts   {chance:.0%}")
    return 0


def _number(
    options: Mapping[str, str], name: str, default: float, *, low: float, high: float, open_low: bool = False
) -> float:
    text = options.get(name, str(default))
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"{name} is '{text}', which is not a number.") from None
    if not low <= value <= high or (open_low and value == low):
        raise UsageError(
            f"{name} is {text}: it must be {'above' if open_low else 'from'} {low:g} to {high:g}."
        )
    return value
