"""What a demonstrator would answer in Terminus-2's format: reference commands as the agent's JSON.

One answer types the commands and says the task is complete; when asked whether it is sure, a second one
confirms. The text is plain and always the same, so that what is learned from it is the format.
"""

import json
from collections.abc import Sequence

SECONDS = 0.5
"""How long a demonstrator waits for a command: enough for a shell on a busy machine to have run it."""


def demonstration(commands: Sequence[str]) -> list[str]:
    """The answers, in order, of a rollout that types `commands` and is done."""
    typed = [{"keystrokes": f"{command}\n", "duration": SECONDS} for command in commands]
    return [
        _answer("Nothing has been done yet.", "Type the command.", typed),
        _answer("The command has run.", "Finish.", []),
    ]


def _answer(analysis: str, plan: str, commands: list[dict[str, object]]) -> str:
    return json.dumps({"analysis": analysis, "plan": plan, "commands": commands, "task_complete": True})
