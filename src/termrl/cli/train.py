"""`termrl train`: settings in, a run out, with the console while it lasts and the table at its end."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from termrl import __version__
from termrl.cli import INTERRUPTED
from termrl.cli.summary import summary_of

if TYPE_CHECKING:
    from termrl.config import TrainConfig


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

    from termrl.observe.console import open_console

    console = open_console()
    try:
        console.phase("loading")
        import asyncio

        import chz

        from termrl.api import new_run_name, train

        if config.run_name is None:
            config = chz.replace(config, run_name=new_run_name(Path(config.run_root), config.model_name))
        console.note(f"run {config.run_name} in {config.run_root}")
        summary = asyncio.run(train(config, progress=console))
    except KeyboardInterrupt:
        console.close()
        how = f"`termrl train run_name={config.run_name}` goes on from what is stored"
        print(f"interrupted: {how if config.run_name else 'nothing was started'}.", file=sys.stderr)
        return INTERRUPTED
    finally:
        console.close()

    from termrl.evaluate.summary import PICTURE
    from termrl.observe.curve import draw_curve
    from termrl.observe.table import print_summary

    path = _run_path(config)
    draw_curve(summary, path / PICTURE)
    print_summary(summary_of(path))
    return 0


def _resolve(arguments: list[str]) -> "TrainConfig":
    """What was typed, over the stored settings of a run that goes on."""
    from termrl.settings import build, read_arguments

    typed = read_arguments(arguments)
    config = build(typed)
    if config.run_name is None or config.behavior_if_run_exists != "resume" or not _run_path(config).is_dir():
        return config

    from termrl.learn.resume import settle
    from termrl.store import Run

    with Run.open(_run_path(config)) as run:
        return settle(run.settings, typed)


def _run_path(config: "TrainConfig") -> Path:
    return Path(config.run_root) / str(config.run_name)
