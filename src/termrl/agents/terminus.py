"""Harbor's Terminus-2 with the policy as its model: stock prompts, stock parser, lean bookkeeping.

Where stock would end in an error that the policy caused (the context is full, the turns are used up,
the terminal was closed under its own keystrokes), this agent ends normally and says how, so that what
was done by then is verified. A turn is one model call, and a truncated answer counts as one. The
trajectory is written once, at the end.
"""

from typing import Any

from harbor.environments.base import BaseEnvironment
from harbor.llms.base import BaseLLM, ContextLengthExceededError, LLMResponse
from harbor.llms.chat import Chat
from harbor.models.agent.context import AgentContext
from harbor.models.trial.paths import EnvironmentPaths

from termrl.agents.ending import Ending
from termrl.agents.model import PolicyModel
from termrl.agents.parsing import ForgivingParser
from termrl.agents.stock import Command, Terminus2, TmuxSession
from termrl.agents.terminal import LeanTmuxSession
from termrl.policy.asking import Policy


class TurnLimitReached(Exception):
    """The policy has been asked as often as it may be."""


class UnattachedModel(BaseLLM):
    """Stands where the policy will: live objects can't travel through a trial's settings."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    async def call(self, prompt: str, **kwargs: Any) -> LLMResponse:
        raise RuntimeError("this agent was run before a policy was attached to it")

    def get_model_context_limit(self) -> int:
        return 1_000_000

    def get_model_output_limit(self) -> int | None:
        return None


class PolicyTerminus2(Terminus2):
    def __init__(self, *args: Any, early_return: bool = False, **kwargs: Any) -> None:
        kwargs.setdefault("record_terminal_session", False)
        kwargs.setdefault("suppress_max_turns_warning", True)
        kwargs.setdefault("enable_summarize", False)
        super().__init__(*args, **kwargs)
        self._parser = ForgivingParser(self._parser)
        self._early_return = early_return
        self._model: PolicyModel | None = None
        self._write_trajectory = True
        self._in_loop = False
        self._model_calls = 0
        self._confirmed = False
        self.ending: Ending | None = None
        self.parsed_answers = 0

    def attach(self, policy: Policy, *, write_trajectory: bool = True) -> None:
        """Gives the agent its policy; to be called once, between a trial's creation and its run."""
        self._model = self._llm = PolicyModel(policy)
        self._write_trajectory = write_trajectory

    def _init_llm(self, *args: Any, **kwargs: Any) -> BaseLLM:
        return UnattachedModel()

    async def setup(self, environment: BaseEnvironment) -> None:
        if self.options.record_terminal_session:
            await super().setup(environment)
            return
        self._session = LeanTmuxSession(
            session_name=self.name(),
            environment=environment,
            logging_path=EnvironmentPaths.agent_dir / "terminus_2.pane",
            local_asciinema_recording_path=None,
            remote_asciinema_recording_path=None,
            pane_width=self.options.tmux_pane_width,
            pane_height=self.options.tmux_pane_height,
            extra_env=self._extra_env,
            user=environment.default_user,
            early_return=self._early_return,
            logged=self._write_trajectory,
        )
        await self._session.start()

    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        if self.ending is not None:
            # A task's next step: verifying the last one ended the terminal, so there has to be another.
            await self.setup(environment)
        self.ending = None
        self._confirmed = False
        self._model_calls = 0
        try:
            await super().run(instruction, environment, context)
        except ContextLengthExceededError:
            self.ending = Ending.CONTEXT_EXHAUSTED
        except TurnLimitReached:
            self.ending = Ending.TURN_LIMIT
        else:
            if self._confirmed:
                self.ending = Ending.COMPLETED
            elif self._n_episodes >= self._max_episodes:
                self.ending = Ending.TURN_LIMIT
            else:
                self.ending = Ending.SESSION_CLOSED

    async def _run_agent_loop(self, initial_prompt: str, chat: Chat, original_instruction: str = "") -> None:
        self._in_loop = True
        try:
            await super()._run_agent_loop(initial_prompt, chat, original_instruction)
        finally:
            self._in_loop = False

    async def _query_llm(  # type: ignore[override]
        self, chat: Chat, prompt: str, original_instruction: str = "", session: TmuxSession | None = None
    ) -> LLMResponse:
        # Stock retries the call three times, and once more at every level of truncated answers above it;
        # the SDK has already retried by then, so one failure is a failure.
        if self._model_calls >= self._max_episodes:
            raise TurnLimitReached
        self._model_calls += 1
        ask_once = Terminus2._query_llm.__wrapped__
        response: LLMResponse = await ask_once(self, chat, prompt, original_instruction, session)
        if self._model is not None and self._model.was_exhausted:
            # Stock puts words into the model's mouth when even the summary does not fit, and goes on asking.
            raise ContextLengthExceededError("summarizing the history left no room for an answer")
        return response

    async def _handle_llm_interaction(
        self, chat: Chat, prompt: str, original_instruction: str = "", session: TmuxSession | None = None
    ) -> tuple[list[Command], bool, str, str, str, LLMResponse]:
        result = await super()._handle_llm_interaction(chat, prompt, original_instruction, session)
        _, is_task_complete, feedback, *_ = result
        if "ERROR:" not in feedback:
            self.parsed_answers += 1
            self._confirmed = bool(is_task_complete) and self._pending_completion
        return result

    async def _execute_commands(self, commands: list[Command], session: TmuxSession) -> tuple[bool, str]:
        try:
            if not isinstance(session, LeanTmuxSession):
                return await super()._execute_commands(commands, session)
            await session.play(commands)
            return False, self._limit_output_length(await session.get_incremental_output())
        except RuntimeError:
            # Keys sent to a session that the keys before them closed; the loop ends at its next look.
            if await session.is_session_alive():
                raise
            return False, ""

    async def _check_proactive_summarization(
        self, chat: Chat, original_instruction: str, session: TmuxSession
    ) -> tuple[str, list[Any] | None] | None:
        # With nothing said yet stock would replace the first prompt, template and all, by the instruction.
        if not chat.messages:
            return None
        return await super()._check_proactive_summarization(chat, original_instruction, session)

    def _count_total_tokens(self, chat: Chat) -> int:
        return self._model.count_tokens(chat.messages) if self._model is not None else 0

    def _dump_trajectory(self) -> None:
        if self._write_trajectory and not self._in_loop:
            super()._dump_trajectory()
