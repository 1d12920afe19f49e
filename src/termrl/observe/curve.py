"""The learning curve as a picture file, from a run's summary (`termrl.evaluate.summary`)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SMOOTHED_OVER = 3
TRAINING, HELD_OUT, UNSEEN = "#3b6ea5", "#c2512f", "#7f7f7f"


def draw_curve(summary: Mapping[str, Any], path: Path) -> None:
    """Writes a PNG: solve rate of the training rollouts by step, held-out solve rates with intervals."""
    # matplotlib takes a second to import, which only the end of a run should pay.
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    scored = [point for point in summary.get("curve") or [] if point["n"]]
    steps = [point["step"] for point in scored]
    rates = [100 * point["solve_rate"] for point in scored]
    # Rollouts of a step come from the weights before it, so what follows the last step is one further on.
    last = max(steps, default=0) + 1

    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=150, layout="constrained")
    try:
        axes.plot(steps, rates, ".", color=TRAINING, alpha=0.35, markersize=5)
        axes.plot(steps, smooth(rates), color=TRAINING, linewidth=2, label="training tasks")
        _held_out(axes, summary.get("held_out"), "held-out tasks", HELD_OUT, "o", 0, last)
        _held_out(axes, summary.get("held_out_families"), "held-out families", UNSEEN, "s", 0, last)
        axes.set_xlabel("step of reinforcement learning")
        axes.set_ylabel("solve rate (%)")
        axes.set_ylim(-2, 102)
        axes.margins(x=0.04)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_title(
            f"{summary.get('model_name', '')}  ·  {summary.get('run', '')}", loc="left", fontsize=10
        )
        axes.grid(axis="y", alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="best")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    finally:
        pyplot.close(figure)


def smooth(values: Sequence[float], over: int = SMOOTHED_OVER) -> list[float]:
    """Each value averaged with its neighbours: a step has few tasks, and they differ in difficulty."""
    reach = over // 2
    windows = (values[max(0, i - reach) : i + reach + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]


def _held_out(
    axes: Any, stages: Mapping[str, Any] | None, label: str, color: str, marker: str, first: int, last: int
) -> None:
    """Points before the first step and after the last, each with its interval, and a dashed line between."""
    rates = {stage: rate for stage, rate in (stages or {}).items() if rate and rate["n"]}
    before = rates.get("after_warmup") or rates.get("base")
    points = [(x, rate) for x, rate in ((first, before), (last, rates.get("after_rl"))) if rate]
    if not points:
        return
    xs = [x for x, _ in points]
    ys = [100 * rate["solve_rate"] for _, rate in points]
    below = [y - 100 * rate["low"] for y, (_, rate) in zip(ys, points, strict=True)]
    above = [100 * rate["high"] - y for y, (_, rate) in zip(ys, points, strict=True)]
    axes.errorbar(
        xs, ys, yerr=[below, above], color=color, fmt=f"{marker}--", capsize=4, linewidth=1.2, label=label
    )
