"""Which checkpoints a run keeps: periodic ones, a rolling one that the next replaces, and the last.

A checkpoint is recorded in the store in the same transaction as its step. The server may forget all but the
last after their time to live; a run goes on from the newest that is still there.
"""

from termrl.learn.learner import Learner
from termrl.learn.training import Training
from termrl.store import Checkpoint

ROLLING, PERIODIC, FINAL = "rolling", "periodic", "final"


class Checkpoints:
    def __init__(self, training: Training, learner: Learner) -> None:
        self._run = training.run
        self._config = training.config
        self._learner = learner

    async def after_step(self, step: int) -> Checkpoint | None:
        """The checkpoint that is due after a step, saved; to be recorded with the step."""
        done, ttl = step + 1, self._config.checkpoint_ttl_hours
        if self._config.save_every and done % self._config.save_every == 0:
            return await self._learner.checkpoint(f"step-{done:05d}", done, kind=PERIODIC, ttl_hours=ttl)
        if self._config.rolling_save_every and done % self._config.rolling_save_every == 0:
            return await self._learner.checkpoint(f"rolling-{done:05d}", done, kind=ROLLING, ttl_hours=ttl)
        return None

    async def tidy(self) -> None:
        """Lets go of the rolling checkpoints that a later checkpoint of any kind replaced."""
        known = self._run.checkpoints()
        for checkpoint in known:
            if checkpoint.kind == ROLLING and checkpoint.step < known[-1].step:
                self._run.forget_checkpoint(checkpoint.name)
                await self._learner.forget(checkpoint)

    async def keep_last(self, *, final: bool) -> None:
        """The weights as they are, kept under a name if they are not yet; for good where the run is over."""
        version = self._learner.version
        kept = [each for each in self._run.checkpoints() if each.step == version]
        if any(each.kind == FINAL or (self._config.checkpoint_ttl_hours is None) for each in kept):
            return
        name, kind = (f"final-{version:05d}", FINAL) if final else (f"stopped-{version:05d}", ROLLING)
        ttl = None if final else self._config.checkpoint_ttl_hours
        self._run.record_checkpoint(await self._learner.checkpoint(name, version, kind=kind, ttl_hours=ttl))
        await self.tidy()
