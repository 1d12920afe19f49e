"""What the model sees is what stock Terminus-2 would have shown it."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harbor.llms.base import BaseLLM, LLMResponse
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.trial.trial import Trial

from termrl.agents.stock import Terminus2
from termrl.rollout.settings import LOCAL_ENVIRONMENT


class Recorder(BaseLLM):
    """Answers from a script and remembers what it was asked."""

    def __init__(self, answers: list[str]) -> None:
        super().__init__()
        self.answers = answers
        self.prompts: list[str] = []

    async def call(self, prompt: str, **kwargs: Any) -> LLMResponse:
        self.prompts.append(prompt)
        return LLMResponse(content=self.answers[len(self.prompts) - 1])

    def get_model_context_limit(self) -> int:
        return 1_000_000

    def get_model_output_limit(self) -> int | None:
        return None


class StockTerminus2(Terminus2):
    """Stock, but for a model that needs no key."""

    def _init_llm(self, *args: Any, **kwargs: Any) -> BaseLLM:
        return Recorder([])


async def stock_prompts(task_dir: Path, trials_dir: Path, answers: list[str]) -> list[str]:
    config = TrialConfig(
        task=TaskConfig(path=task_dir),
        trials_dir=trials_dir,
        agent=AgentConfig(
            import_path=f"{__name__}:StockTerminus2",
            model_name="some/model",
            kwargs={"record_terminal_session": False, "enable_summarize": False},
        ),
        environment=EnvironmentConfig(import_path=LOCAL_ENVIRONMENT),
    )
    trial = await Trial.create(config)
    recorder = Recorder(answers)
    assert isinstance(trial.agent, Terminus2)
    trial.agent._llm = recorder
    await trial.run()
    return recorder.prompts


def prompts_in(text: str) -> list[str]:
    return re.findall(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", text, re.DOTALL)


async def test_the_prompts_of_a_rollout_are_those_of_stock(
    bench: Any, say: Callable[..., str], tmp_path: Path
) -> None:
    answers = [
        say("seq 1 100", duration=0.5),
        "not json",
        say("clear", "echo a", duration=0.5),
        say(duration=0.5),
        say("printf 'no newline'", done=True, duration=0.5),
        say("sleep 0.2; echo late", duration=0.5),
        say(done=True),
        say(done=True),
    ]
    expected = await stock_prompts(bench.task.task_dir, tmp_path / "stock", answers)
    rollout = await bench.run(answers, max_turns=20, context_limit=200_000)
    seen = prompts_in(bench.tokenizer.decode(rollout.turns[-1].prompt))
    assert len(seen) == len(expected) == len(answers)
    assert seen[1:] == expected[1:]
    # Stock may look before the shell has drawn its prompt; the rest of the first prompt is the same.
    assert seen[0].split("Current terminal state:")[0] == expected[0].split("Current terminal state:")[0]
