"""The command `termrl`: one file per command, which parses, calls a room and prints.

A command is a module with `help_text()` and `run(arguments) -> exit code`. Modules are imported when they are
asked for, so that the first line is on screen before anything heavy loads. What a user can mend is
printed as one sentence; its error says the exit code.
"""

import difflib
import importlib
import os
import sys
from collections.abc import Sequence

from termrl import __version__
from termrl.errors import UserError

COMMANDS = {
    "train": ("termrl.cli.train", "train a model on tasks: key=value settings, config=FILE"),
    "eval": ("termrl.cli.eval", "evaluate a model on tasks: key=value settings, config=FILE"),
    "eval compare": ("termrl.cli.eval_compare", "compare evaluations of the same tasks"),
    "eval power": ("termrl.cli.eval_power", "how many attempts it takes to see a difference"),
    "setup": ("termrl.cli.setup", "ask for the keys that the chosen services need, test them, write .env"),
    "engine serve": ("termrl.cli.engine_serve", "serve the embedded engine to any Tinker client"),
    "tasks list": ("termrl.cli.tasks_list", "list the tasks of a dataset"),
    "tasks show": ("termrl.cli.tasks_show", "show a dataset as a whole, or one of its tasks"),
    "tasks datasets": ("termrl.cli.tasks_datasets", "list the datasets on this machine"),
    "tasks pull": ("termrl.cli.tasks_pull", "fetch a dataset, or what is missing of it"),
    "tasks remove": ("termrl.cli.tasks_remove", "remove a fetched dataset"),
    "tasks check": ("termrl.cli.tasks_check", "try every task with oracle, no-op and cheating agents"),
    "tasks split": ("termrl.cli.tasks_split", "split a dataset into train and held-out lists"),
    "tasks new": ("termrl.cli.tasks_new", "write a task of one's own to begin with"),
    "runs list": ("termrl.cli.runs_list", "list the runs on this machine"),
    "runs show": ("termrl.cli.runs_show", "show what a run reached, and where its time went"),
    "snapshot create": (
        "termrl.cli.snapshot_create",
        "build the environments of a dataset once, to start from",
    ),
    "snapshot list": ("termrl.cli.snapshot_list", "list the snapshots"),
    "snapshot inspect": ("termrl.cli.snapshot_inspect", "show all that is known of a snapshot"),
    "snapshot renew": ("termrl.cli.snapshot_renew", "let snapshots live longer"),
    "snapshot destroy": ("termrl.cli.snapshot_destroy", "remove snapshots"),
    "snapshot sync": ("termrl.cli.snapshot_sync", "bring records and snapshots into step"),
    "replay": (
        "termrl.cli.replay",
        "type a stored rollout's answers again in a fresh sandbox, without a model",
    ),
    "sandbox list": ("termrl.cli.sandbox_list", "list what runs have open, and what a crash left behind"),
    "sandbox reap": ("termrl.cli.sandbox_reap", "remove what runs that are gone left behind"),
    "images import": ("termrl.cli.images_import", "import a root file system for the local sandbox"),
    "images list": ("termrl.cli.images_list", "list the imported root file systems"),
    "images remove": ("termrl.cli.images_remove", "remove an imported root file system"),
    "doctor": ("termrl.cli.doctor", "check that this machine has what a run needs"),
}
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(words)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has what it wanted; what is left in the buffer has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if words[0] == "--version":
        print(f"termrl {__version__}")
        return 0
    name, rest = _command(words)
    command = importlib.import_module(COMMANDS[name][0])
    if any(word in ("-h", "--help") for word in rest):
        print(command.help_text())
        return 0
    _read_dotenv()
    code: int = command.run(rest)
    return code


def _command(words: list[str]) -> tuple[str, list[str]]:
    for length in (2, 1):
        name = " ".join(words[:length])
        if name in COMMANDS:
            return name, words[length:]
    group = [name for name in COMMANDS if name.startswith(f"{words[0]} ")]
    typed = " ".join(words[: 2 if group else 1])
    close = group if typed == words[0] else []
    close = close or difflib.get_close_matches(typed, COMMANDS, n=1) or group
    hint = f"did you mean {' or '.join(f'`termrl {name}`' for name in close)}?" if close else ""
    raise UserError(f"There is no command `termrl {typed}`: {hint or '`termrl --help` lists them all.'}")


def _read_dotenv() -> None:
    """Keys kept in the working directory's .env; what the environment already says goes before it."""
    from dotenv import load_dotenv

    load_dotenv(".env", override=False)


def usage() -> str:
    lines = [f"  {name:<18}{text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        [
            "Train and evaluate open-weight models as terminal agents on Harbor tasks.",
            "",
            "usage: termrl COMMAND ...",
            "",
            *lines,
            "",
            "`termrl COMMAND --help` says more about each.",
        ]
    )
