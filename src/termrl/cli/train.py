"""`termrl train`: settings in, a run out, with the console while it lasts and the table at its end."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from termrl import __version__
from termrl.cli import INTERRUPTED

if TYPE_CHECKING:
    from termrl.config import TrainConfig

PICTURE = "learning_curve.png"


def help_text() -> str:
    from termrl.settings import all_settings

    lines = [
        "usage: termrl train [config=FILE] [key=value | --key value] ...",
        "",
        "Trains a model on tasks. `config=quickstart` is a settings file that ships; a run that was stopped",
        "goes on with `termrl train run_name=NAME`.",
        "",
        f"  {'config=none':<44} a settings file (TOML), or the name of one that ships",
    ]
    for setting in all_settings().values():
        also = f" [also {', '.join(setting.aliases)}]" if setting.aliases else ""
        lines.append(f"  {f'{setting.name}={setting.shown_default}':<44} {setting.doc}{also}")
    return "\n".join(lines)


def run(arguments: list[str]) -> int:
    print(f"termrl {__version__}: reading the settings", flush=True)
    config = _resolve(arguments)
    print(f"run {config.run_name} in {config.run_root}, model {config.model_name}", flush=True)

    from termrl.observe.console import open_console

    console = open_console()
    try:
        console.phase("loading")
        from termrl.learn.train import train

        summary = dict(train(config, progress=console))
    except KeyboardInterrupt:
        console.close()
        print(
            f"interrupted: `termrl train run_name={config.run_name}` goes on from what is stored.",
            file=sys.stderr,
        )
        return INTERRUPTED
    finally:
        console.close()

    from termrl.observe.curve import draw_curve
    from termrl.observe.table import print_summary

    picture = Path(summary["path"]) / PICTURE
    draw_curve(summary, picture)
    print_summary(summary | {"picture": str(picture)})
    return 0


def _resolve(arguments: list[str]) -> "TrainConfig":
    """What was typed, over the stored settings of a run that goes on; a new run gets a name."""
    import chz

    from termrl.settings import build, flatten, from_dict, read_arguments
    from termrl.store import Run

    typed = read_arguments(arguments)
    config = build(typed)
    if config.run_name is None:
        return chz.replace(config, run_name=_new_name(Path(config.run_root), config.model_name))
    path = Path(config.run_root) / config.run_name
    if not path.is_dir() or config.behavior_if_run_exists != "resume":
        return config
    with Run.open(path) as run:
        return from_dict(flatten(run.settings) | typed)


def _new_name(run_root: Path, model_name: str) -> str:
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{Path(model_name).name}"
    taken = 1
    while (run_root / (name if taken == 1 else f"{name}-{taken}")).exists():
        taken += 1
    return name if taken == 1 else f"{name}-{taken}"
