"""A black box trained: the whole way from `train` through the gateway to an optimizer's step."""

import json
from pathlib import Path
from typing import Any

import openai
from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext

from termrl import train
from termrl.config import TrainConfig
from termrl.rollout.reward import Graded
from termrl.store import Run

Bench = Any
CALLS = 2


class OpenAILoop(BaseAgent):
    """A conversation of two calls with the real client; it knows an address and a key, nothing more."""

    @staticmethod
    def name() -> str:
        return "openai-loop"

    def version(self) -> str:
        return "1"

    async def setup(self, environment: BaseEnvironment) -> None:
        pass

    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        env = self.extra_env
        messages: list[Any] = [{"role": "user", "content": instruction}]
        async with openai.AsyncOpenAI(
            base_url=env["OPENAI_BASE_URL"], api_key=env["OPENAI_API_KEY"], max_retries=0
        ) as client:
            for _ in range(CALLS):
                reply = await client.chat.completions.create(
                    model="any", messages=messages, temperature=0.0, max_tokens=12
                )
                messages.append({"role": "assistant", "content": reply.choices[0].message.content})
                seen = await environment.exec("ls /app | wc -l")
                messages.append({"role": "user", "content": seen.stdout or ""})


def odd_or_even(graded: Graded, sandbox: Any) -> float:
    """Answers of an untrained model differ; so must their rewards, or there is nothing to learn."""
    return float(sum(graded.turns[-1].sampled) % 2)


async def test_a_black_box_is_trained_through_the_gateway(bench: Bench, tmp_path: Path) -> None:
    config = TrainConfig(
        model_name="termrl/tiny",
        dataset=str(bench.task.task_dir.parent),
        agent=f"{__name__}:OpenAILoop",
        reward_fn=f"{__name__}:odd_or_even",
        run_root=str(tmp_path / "runs"),
        run_name="black-box",
        batch_size=1,
        group_size=6,
        max_steps=2,
        max_turns=4,
        max_tokens=12,
        learning_rate=1e-2,
        lora_rank=4,
        eval_dataset=None,
        eval_dataset_families=None,
        eval_base=False,
    )
    await train(config)
    with Run.open(tmp_path / "runs" / "black-box") as run:
        rollouts = run.rollouts("train")
        steps = run.steps()
        checkpoints = run.checkpoints()
    assert len(rollouts) == 12
    assert {rollout.outcome.value for rollout in rollouts.values()} <= {"solved", "failed"}
    assert all(len(rollout.turns) == CALLS for rollout in rollouts.values())
    assert all(turn.sampled_count <= 12 for rollout in rollouts.values() for turn in rollout.turns)
    versions = {place.step: {t.policy_version for t in each.turns} for place, each in rollouts.items()}
    assert versions == {0: {0}, 1: {1}}, "the second step was not sampled from what the first had trained"
    trained = [step for step in steps.values() if step["datums"]]
    assert trained, f"no step had rewards that differ: {json.dumps(list(steps.values()), default=str)}"
    assert len(checkpoints) > 0
