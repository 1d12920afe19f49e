"""`termrl train`: settings in, a run out, with the console while it lasts and the table at its end."""

import asyncio
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from termrl import __version__
from termrl.cli import INTERRUPTED
from termrl.cli.summary import summary_of
from termrl.errors import Interrupted

if TYPE_CHECKING:
    from termrl.config import TrainConfig
    from termrl.engine.process import PreparedEngine
    from termrl.learn.progress import Progress


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

    from termrl.engine.process import PreparedEngine
    from termrl.observe.console import open_console

    console = open_console()
    # The engine imports its modules on one core while this process imports its own on another.
    engine = None if config.base_url or config.dry_run else PreparedEngine()
    try:
        console.phase("loading")
        import chz

        from termrl.api.parts import new_run_name

        if config.dry_run:
            return _dry_run(config, console)
        if config.run_name is None:
            config = chz.replace(config, run_name=new_run_name(Path(config.run_root), config.model_name))
        console.note(f"run {config.run_name} in {config.run_root}")
        summary = asyncio.run(_train(config, console, engine))
    except (KeyboardInterrupt, Interrupted, asyncio.CancelledError):
        console.close()
        how = f"`termrl train run_name={config.run_name}` goes on from what is stored"
        print(f"interrupted: {how if config.run_name else 'nothing was started'}.", file=sys.stderr)
        return INTERRUPTED
    finally:
        console.close()
        if engine is not None:
            engine.abandon()

    from termrl.evaluate.summary import PICTURE
    from termrl.observe.curve import draw_curve
    from termrl.observe.table import print_summary

    path = _run_path(config)
    draw_curve(summary, path / PICTURE)
    print_summary(summary_of(path))
    return 0


async def _train(
    config: "TrainConfig", console: "Progress", engine: "PreparedEngine | None"
) -> dict[str, Any]:
    """The run; Ctrl-C once lets what is in flight end and keeps the weights, twice stops it at once."""
    from termrl.api import train
    from termrl.learn.stop import Stop

    stop, work = Stop(), asyncio.current_task()
    assert work is not None

    def interrupt() -> None:
        if stop.asked:
            work.cancel()
            return
        stop.ask(Interrupted())
        console.note("Ending what is in flight, then keeping the weights. Ctrl-C again stops now, resumably.")

    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupt)
    return await train(config, progress=console, stop=stop, engine=engine)


def _dry_run(config: "TrainConfig", console: "Progress") -> int:
    from termrl.api import dry_run

    estimate = asyncio.run(dry_run(config, progress=console))
    console.close()
    print("\n".join(estimate.lines()))
    return 0


def _resolve(arguments: list[str]) -> "TrainConfig":
    """What was typed, over the stored settings of a run that goes on."""
    import chz

    from termrl.config import TrainConfig
    from termrl.settings import build, read_arguments

    typed = read_arguments(arguments)
    config: TrainConfig = build(typed)
    if config.run_name is None or not _run_path(config).is_dir():
        return config

    from termrl.learn.resume import RunExistsError, free_name, settle
    from termrl.store import Run

    behaviour: str = config.behavior_if_run_exists
    if behaviour == "ask":
        behaviour = _ask(config)
    if behaviour == "error":
        raise RunExistsError(
            f"The run {_run_path(config)} is there already: give another run_name, or go on with it "
            "(behavior_if_run_exists=resume)."
        )
    if behaviour == "new":
        return chz.replace(config, run_name=free_name(_run_path(config)))
    with Run.open(_run_path(config)) as run:
        return settle(run.settings, {**typed, "behavior_if_run_exists": "resume"})


def _ask(config: "TrainConfig") -> str:
    """What the person at the terminal wants; where there is nobody to ask, that is said."""
    from termrl.learn.resume import RunExistsError

    if not sys.stdin.isatty():
        raise RunExistsError(
            f"The run {_run_path(config)} is there already and there is no terminal to ask at: say "
            "behavior_if_run_exists=resume, new or error."
        )
    while True:
        answer = input(
            f"The run {config.run_name} is there already: [r]esume it, make a [n]ew one, or [q]uit? "
        )
        match answer.strip().lower()[:1]:
            case "r":
                return "resume"
            case "n":
                return "new"
            case "q":
                return "error"


def _run_path(config: "TrainConfig") -> Path:
    return Path(config.run_root) / str(config.run_name)
