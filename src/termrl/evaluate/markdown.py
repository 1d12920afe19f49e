"""results.md: an evaluation's results as a page, every rate with its interval and its denominator."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

WAYS = {"excluded_left_out": "excluded left out", "excluded_as_failed": "excluded counted as failed"}


def results_page(results: Mapping[str, Any]) -> str:
    dataset, counts = results["dataset"], results["counts"]
    checkpoint = f", checkpoint `{results['checkpoint_url']}`" if results["checkpoint_url"] else ""
    parts = [
        f"# {results['model_name']} on {dataset['name']}",
        f"`{results['agent']}`{checkpoint}; {dataset['chosen']} of {dataset['tasks']} tasks, "
        f"{results['attempts']} attempt{'s' * (results['attempts'] > 1)} each; "
        f"dataset digest `{dataset['digest']}`, seed {results['seed']}.",
        _table(
            ("result", "rollouts", "share"),
            [(row["result"], row["count"], show_share(row["share"])) for row in counts["table"]],
        ),
        f"{counts['rollouts']} rollouts, {counts['scored']} scored, {counts['excluded']} excluded"
        + (f", {counts['missing']} missing" if counts["missing"] else "")
        + ". A PASS is "
        + (
            f"a reward of {results['pass_threshold']} or more."
            if results["pass_threshold"] is not None
            else "the task's full reward."
        ),
        "## Scores",
        "With 95 % intervals, by bootstrap over tasks.",
        _table(("", *WAYS.values()), score_rows(results)),
        *_part("By category", results["by_category"]),
        *_part("By difficulty", results["by_difficulty"]),
        "## Use",
        _table(("", "total", "median", "95 %"), list(_usage_rows(results))),
        "## Time",
        _table(
            ("seconds a rollout", "median", "95 %", "most"),
            [
                (phase, *(f"{values[name]:.1f}" for name in ("p50", "p95", "p100")))
                for phase, values in results["seconds"].items()
                if isinstance(values, Mapping)
            ],
        ),
        f"{results['seconds']['wall']:.0f} s in all.",
        "## Tasks",
        _table(
            ("", "task", "passed", "attempts"),
            [
                (row["index"], row["task"], sum(p is True for p in row["passed"]), _attempts(row))
                for row in results["tasks"]
            ],
        ),
        "## Settings",
        "```\n" + "\n".join(f"{k}={_shown(v)}" for k, v in results["settings"].items()) + "\n```",
        ", ".join(f"{name} {number}" for name, number in results["versions"].items()) + ".",
    ]
    return "\n\n".join(parts) + "\n"


def score_rows(results: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Accuracy and each pass@k, with excluded rollouts left out and counted as failed."""
    scores = [results["scores"][way] for way in WAYS]
    rows = [("accuracy, per rollout", *(show_estimate(way["accuracy"]) for way in scores))]
    rows += [
        (f"pass@{k}", *(show_estimate(way["pass_at_k"][k]) for way in scores)) for k in scores[0]["pass_at_k"]
    ]
    return rows


def show_estimate(estimate: Mapping[str, Any]) -> str:
    if estimate["value"] is None:
        return "not defined"
    low, high = 100 * estimate["low"], 100 * estimate["high"]
    undefined = estimate.get("undefined_tasks")
    without = f", without {undefined} tasks of too few attempts" if undefined else ""
    return f"{estimate['value']:.1%} [{low:.1f}, {high:.1f}] ({estimate['tasks']} tasks{without})"


def show_share(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def _part(title: str, groups: Mapping[str, Any]) -> list[str]:
    if len(groups) < 2:
        return []
    rows = [
        (name, group["tasks"], show_estimate(group["accuracy"]), show_estimate(group["pass_at_k"]["1"]))
        for name, group in groups.items()
    ]
    return [f"## {title}", _table(("", "tasks", "accuracy", "pass@1"), rows)]


def _usage_rows(results: Mapping[str, Any]) -> Iterable[tuple[str, ...]]:
    for name, label in (
        ("turns", "turns"),
        ("prompt_tokens", "prompt tokens"),
        ("sampled_tokens", "sampled tokens"),
    ):
        values = results["usage"][name]
        if values["quantiles"]:
            spread = values["quantiles"]
            yield label, f"{values['total']:,}", f"{spread['p50']:,.0f}", f"{spread['p95']:,.0f}"
    cost = results["usage"]["cost_usd"]
    if cost["total"] is not None:
        spread = cost["quantiles"]
        yield "cost in dollars", f"{cost['total']:.2f}", f"{spread['p50']:.3f}", f"{spread['p95']:.3f}"


def _attempts(row: Mapping[str, Any]) -> str:
    shown = {True: "PASS", False: "FAIL"}
    return ", ".join(
        "missing" if outcome is None else shown.get(passed, outcome)
        for passed, outcome in zip(row["passed"], row["outcomes"], strict=True)
    )


def _table(headers: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def _shown(value: Any) -> str:
    from termrl.settings.values import show_value

    return show_value(value)
