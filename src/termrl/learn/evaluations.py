"""Evaluations that run beside training, of the weights as they were at a step.

The weights are saved for samplers and noted in the store before the first attempt, so an evaluation that a
break cut short goes on later with the same weights, whatever was trained meanwhile.
"""

import asyncio

from termrl.learn.learner import Learner
from termrl.learn.progress import Silent
from termrl.learn.training import Training

NAME = "during_rl"
PHASE = f"eval-{NAME}-"


class Evaluations:
    def __init__(self, training: Training, learner: Learner, work: asyncio.TaskGroup) -> None:
        self._training = training
        self._learner = learner
        self._work = work
        self._running: list[asyncio.Task[None]] = []

    async def go_on(self, step: int) -> None:
        """Takes up what a break cut short, and what was due at the step that is begun with."""
        for name, phase in self._training.run.phases().items():
            if name.startswith(PHASE) and not phase["done"]:
                self._begin(int(name.removeprefix(PHASE)), phase["sampler"])
        if step:
            await self.after_step(step)

    async def after_step(self, step: int) -> None:
        """Begins the evaluation that is due after so many steps, if one is."""
        every = self._training.config.eval_every
        if not every or step % every or step >= self._training.steps:
            return
        if f"{PHASE}{step}" in self._training.run.phases():
            return
        path = await self._learner.save_for_sampler(f"eval-{step:05d}")
        self._training.run.record_phase(f"{PHASE}{step}", seconds=0, done=False, facts={"sampler": path})
        self._begin(step, path)

    def _begin(self, step: int, path: str) -> None:
        self._running.append(self._work.create_task(self._evaluate(step, path)))

    async def _evaluate(self, step: int, path: str) -> None:
        training = self._training
        sampler = await self._learner.sampler_of(path, step, training.stop_tokens)
        await training.evaluate(NAME, step, sampler, Silent())
        # Its time is the loop's too: none is added, so that a run's times add up.
        training.run.record_phase(f"{PHASE}{step}", seconds=0, done=True, facts={"sampler": path})
        training.progress.note(f"The weights of step {step} are evaluated.")

    async def finish(self) -> None:
        """Waits for those under way."""
        if self._running:
            await asyncio.wait(self._running)

    def close(self) -> None:
        for task in self._running:
            task.cancel()
