"""Rollouts of real model calls that wait where commands would run, without a sandbox or an agent.

They take a pool's runner's place where the question is about the pipeline around rollouts: how busy it keeps
the engine, what survives a break. Prompts extend what was sampled; the reward is a function of the tokens.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from random import Random

from termrl.policy.sampler import Sampler, turn_seed
from termrl.policy.transcript import Turn
from termrl.rollout.outcome import Outcome
from termrl.rollout.record import Rollout, Timings
from termrl.rollout.runner import Task


class WaitingRunner:
    """`wait` draws the seconds that a rollout waits in all, from random numbers of its own."""

    def __init__(
        self,
        wait: Callable[[Random], float],
        *,
        turns: int = 2,
        max_tokens: int = 16,
        prompt: Sequence[int] = (1, 2, 3, 4),
    ) -> None:
        self._wait = wait
        self._turns = turns
        self._max_tokens = max_tokens
        self._prompt = tuple(prompt)

    async def run(self, task: Task, sampler: Sampler, *, seed: int) -> Rollout:
        sampler = sampler.for_attempt()
        pause = self._wait(Random(seed)) / self._turns
        turns: list[Turn] = []
        prompt = self._prompt
        started = time.monotonic()
        for number in range(self._turns):
            answer = await sampler.sample(prompt, self._max_tokens, turn_seed(seed, number))
            turns.append(
                Turn(prompt, answer.tokens, answer.logprobs, sampler.policy_version, answer.stop_reason)
            )
            prompt = (*turns[-1].tokens, *self._prompt)
            await asyncio.sleep(pause)
        seconds = time.monotonic() - started
        solved = sum(turns[-1].sampled) % 2 == 1
        outcome = Outcome.SOLVED if solved else Outcome.FAILED
        return Rollout(
            task.task_name, outcome, float(solved), tuple(turns), Timings(agent=seconds, total=seconds)
        )
