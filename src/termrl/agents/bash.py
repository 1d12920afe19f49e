"""A plain loop around one tool, `bash`, called in the model family's own tool-call format.

Working directory and exported environment live on from call to call, functions and shell options do not. An
answer without a call ends the task. Where the context is full or the turns are used up the agent ends
normally and says how, so that what was done by then is verified.
"""

import json
import shlex
import uuid
from typing import Any

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext

from termrl.agents.ending import Ending
from termrl.policy.asking import Answer, ContextExhausted, Policy, ToolCall
from termrl.policy.conversation import Message

TOOL: dict[str, Any] = {
    "name": "bash",
    "description": "Run a command in bash and see its output. Directory and environment persist.",
    "parameters": {
        "type": "object",
        "properties": {
            "command": {"type": "string", "description": "the command to run"},
            "timeout": {"type": "number", "description": "seconds it may take, 60 if not given"},
        },
        "required": ["command"],
    },
}
SYSTEM = (
    "You are given a task in a Linux environment. Work on it with the bash tool, one step at a time. "
    "When the task is done, answer without calling the tool."
)
_DEFAULT_SECONDS = 60.0
_MOST_SECONDS = 600.0
_MOST_OUTPUT = 10_000


class BashAgent(BaseAgent):
    def __init__(self, *args: Any, max_turns: int = 50, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._max_turns = max_turns
        self._policy: Policy | None = None
        self._write_trajectory = True
        self._state = f"/tmp/.bash-{uuid.uuid4().hex}"
        self.ending: Ending | None = None
        self.parsed_answers = 0

    @staticmethod
    def name() -> str:
        return "bash"

    def version(self) -> str:
        return "1"

    def attach(self, policy: Policy, *, write_trajectory: bool = True) -> None:
        self._policy = policy
        self._write_trajectory = write_trajectory

    async def setup(self, environment: BaseEnvironment) -> None:
        """Nothing is installed: any environment that has bash will do."""

    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        messages: list[Message] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": instruction},
        ]
        try:
            self.ending = await self._work(messages, environment)
        except ContextExhausted:
            self.ending = Ending.CONTEXT_EXHAUSTED
        finally:
            self._write(messages)

    async def _work(self, messages: list[Message], environment: BaseEnvironment) -> Ending:
        if self._policy is None:
            raise RuntimeError("this agent was run before a policy was attached to it")
        for _ in range(self._max_turns):
            answer = await self._policy.ask(messages, tools=[TOOL])
            messages.append(answer.message)
            if not answer.malformed_calls and not answer.cut:
                self.parsed_answers += 1
            if not answer.tool_calls and not answer.malformed_calls and not answer.cut:
                return Ending.COMPLETED
            messages += await self._results(answer, environment)
        return Ending.TURN_LIMIT

    async def _results(self, answer: Answer, environment: BaseEnvironment) -> list[Message]:
        results: list[Message] = [
            {
                "role": "tool",
                "tool_call_id": call.id,
                "name": call.name,
                "content": await self._call(call, environment),
            }
            for call in answer.tool_calls
        ]
        if answer.cut:
            told = f"Your answer was cut off at {answer.answer_tokens} tokens. Keep answers shorter."
            results.append({"role": "user", "content": told})
        elif answer.malformed_calls:
            results.append({"role": "user", "content": "Your tool call could not be read. Call bash again."})
        return results

    async def _call(self, call: ToolCall, environment: BaseEnvironment) -> str:
        command = call.arguments.get("command")
        if call.name != TOOL["name"] or not isinstance(command, str):
            return "error: the only tool is bash, and it takes a command"
        seconds = _seconds(call.arguments.get("timeout"))
        try:
            result = await environment.exec(
                f"exec bash -c {shlex.quote(self._script(_typable(command)))}", timeout_sec=round(seconds)
            )
        except (RuntimeError, TimeoutError) as error:
            # Harbor's environments have no type of their own for this, only these words.
            if "timed out" not in str(error):
                raise
            return f"error: the command was ended after {seconds:.0f} s"
        output = _shortened(f"{result.stdout or ''}{result.stderr or ''}")
        return f"{output}\n[exit code {result.return_code}]".lstrip("\n")

    def _script(self, command: str) -> str:
        state = self._state
        return (
            f"mkdir -p {state}; [ -f {state}/env ] && . {state}/env; "
            f'[ -f {state}/cwd ] && cd "$(cat {state}/cwd)" 2>/dev/null; '
            f"trap 'c=$?; export -p > {state}/env; pwd > {state}/cwd; exit $c' EXIT\n{command}"
        )

    def _write(self, messages: list[Message]) -> None:
        if self._write_trajectory:
            self.logs_dir.mkdir(parents=True, exist_ok=True)
            (self.logs_dir / "messages.json").write_text(json.dumps(messages, indent=1))


def _seconds(asked: Any) -> float:
    if isinstance(asked, bool) or not isinstance(asked, int | float) or not asked > 0:
        return _DEFAULT_SECONDS
    return max(1.0, min(float(asked), _MOST_SECONDS))


def _typable(text: str) -> str:
    """A NUL or a lone surrogate, which JSON can spell, is nothing a shell could be given."""
    return text.replace("\0", "").encode("utf-8", "ignore").decode("utf-8")


def _shortened(text: str) -> str:
    if len(text) <= _MOST_OUTPUT:
        return text
    half = _MOST_OUTPUT // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n[... {left_out} characters left out ...]\n{text[-half:]}"
