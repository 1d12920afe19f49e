"""`termrl eval`: settings in, an evaluation out: a line a rollout, a live panel, the results at the end."""

import json
import sys
from typing import TYPE_CHECKING, Any

from termrl import __version__
from termrl.cli import INTERRUPTED

if TYPE_CHECKING:
    from termrl.config import EvalConfig

EXAMPLES = """\
  termrl eval                                                      the model that ships, on built-in tasks
  termrl eval dataset=terminal-bench@2.0 model_name=MODEL checkpoint_url=tinker://... attempts=2
  termrl eval dataset=PATH model_name=openai/NAME base_url=http://HOST/v1    any OpenAI-compatible endpoint
  termrl eval dataset=PATH agent=oracle                            the tasks' own solutions
  termrl eval compare A B, termrl eval power RUN                   what a difference is worth"""


def help_text() -> str:
    from termrl.config import EvalConfig
    from termrl.settings import all_settings

    lines = [
        "usage: termrl eval [config=FILE] [key=value | --key value] ... [--json]",
        "",
        "Attempts the tasks of a dataset and scores the attempts. The same command again runs only what is",
        "missing or was excluded. --json prints the results as JSON.",
        "",
        EXAMPLES,
        "",
        f"  {'config=none':<44} a settings file (TOML)",
    ]
    for setting in all_settings(EvalConfig).values():
        also = f" [also {', '.join(setting.aliases)}]" if setting.aliases else ""
        lines.append(f"  {f'{setting.name}={setting.shown_default}':<44} {setting.doc}{also}")
    return "\n".join(lines)


def run(arguments: list[str]) -> int:
    as_json = "--json" in arguments
    arguments = [argument for argument in arguments if argument != "--json"]
    stream = sys.stderr if as_json else sys.stdout
    print(f"termrl {__version__}: reading the settings", file=stream, flush=True)
    config = _resolve(arguments)

    from termrl.observe.console import open_console

    console = open_console(stream, keep_notes=True)
    try:
        console.phase("loading")
        import asyncio

        from termrl.api import evaluate

        result = asyncio.run(evaluate(config, progress=console))
    except KeyboardInterrupt:
        console.close()
        print("interrupted: the same command goes on from what is stored.", file=sys.stderr)
        return INTERRUPTED
    finally:
        console.close()
    _print(result, as_json)
    return 0


def _print(result: Any, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result.results, indent=1))
        return

    from termrl.observe.panel import print_results

    for part in result.parts or (result,):
        print_results(part.results, part.output_path)


def _resolve(arguments: list[str]) -> "EvalConfig":
    """What was typed, over the stored settings of an evaluation that is named again."""
    from termrl.config import EvalConfig
    from termrl.settings import build, read_arguments

    typed = read_arguments(arguments, EvalConfig)
    config = build(typed, EvalConfig)
    if config.run_name is None:
        return config

    from pathlib import Path

    from termrl.evaluate.going_on import go_on
    from termrl.store import Run
    from termrl.store.run import DATABASE

    path = Path(config.run_root).expanduser() / config.run_name
    if not (path / DATABASE).is_file():
        return config
    with Run.open(path) as stored:
        return go_on(stored.settings, typed)
