"""What models above the limit of small ones compute otherwise, seen on a model that is told to be big."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from termrl.engine import architecture, llama
from termrl.engine.llama import target_logprobs
from termrl.engine.lora import Lora, LoraSpec
from termrl.engine.models import BaseModel
from termrl.engine.programs import Programs
from termrl.engine.rows import Datum
from termrl.engine.sampler import Sampler
from termrl.engine.sequences import Answer, SamplingSettings
from termrl.engine.shapes import BIG, shapes_of
from termrl.engine.trainer import Trainer


@pytest.fixture
def big(base: BaseModel, monkeypatch: pytest.MonkeyPatch) -> BaseModel:
    """With a context of its own: what is compiled for a config is never looked at again."""
    monkeypatch.setattr(architecture, "SMALL_PARAMETERS", 0)
    config = dataclasses.replace(base.config, max_position_embeddings=2048)
    assert shapes_of(config) is BIG
    return dataclasses.replace(base, config=config, programs=Programs())


def expected_logprobs(base: BaseModel, prompt: np.ndarray, answer: Answer) -> np.ndarray:
    whole = np.zeros((1, 1536), np.int32)
    size = len(prompt) + len(answer.tokens)
    whole[0, :size] = [*prompt, *answer.tokens]
    targets = jnp.roll(jnp.asarray(whole), -1, axis=1)
    found = target_logprobs(base.params, base.config, jnp.asarray(whole), targets)
    return np.asarray(found[0, len(prompt) - 1 : size - 1])


def test_sampled_logprobs_are_those_of_the_training_forward_for_prompts_of_every_piece(
    big: BaseModel,
) -> None:
    rng = np.random.default_rng(0)
    # Every width of a piece, first and after another; a short one after more than is attended at once.
    lengths = [1, 8, 17, 65, 130, 200, 450, 1100, 580]
    prompts = [rng.integers(2, 97, length).astype(np.int32) for length in lengths]
    sampler = Sampler(big, big.params)
    answers: dict[int, Answer] = {}
    for i, prompt in enumerate(prompts):
        settings = SamplingSettings(
            max_tokens=12, seed=i, temperature=0.8 if i % 2 else 1.0, stops_at_eos=False
        )
        sampler.sample(prompt, settings, 0, partial(answers.__setitem__, i))
    while sampler.busy:
        sampler.step()
    for i, prompt in enumerate(prompts):
        np.testing.assert_allclose(answers[i].logprobs, expected_logprobs(big, prompt, answers[i]), atol=1e-4)
    longer = np.concatenate([prompts[-1], np.asarray(answers[8].tokens), prompts[3]]).astype(np.int32)
    settings = SamplingSettings(max_tokens=12, seed=1, stops_at_eos=False)
    sampler.sample(longer, settings, 0, partial(answers.__setitem__, 9))
    while sampler.busy:
        sampler.step()
    assert answers[9].cached_tokens == 576
    np.testing.assert_allclose(answers[9].logprobs, expected_logprobs(big, longer, answers[9]), atol=1e-4)


def test_a_row_draws_the_same_whether_or_not_its_neighbours_are_filtered(big: BaseModel) -> None:
    prompt = np.random.default_rng(1).integers(2, 97, 12).astype(np.int32)
    settings = SamplingSettings(max_tokens=20, seed=3, stops_at_eos=False)

    def first(*others: SamplingSettings) -> Answer:
        sampler, answers = Sampler(big, big.params), dict[int, Answer]()
        for i, chosen in enumerate((settings, *others)):
            sampler.sample(prompt, chosen, 0, partial(answers.__setitem__, i))
        while sampler.busy:
            sampler.step()
        return answers[0]

    change = partial(dataclasses.replace, settings)
    alone = first(settings)
    amid = first(change(top_p=0.5))
    assert first(change(temperature=0.0)).tokens == first(change(top_k=3)).tokens == alone.tokens
    assert (amid.tokens, amid.logprobs) == (alone.tokens, alone.logprobs)


ON_EVERY_CORE = """
import json
import sys
from pathlib import Path
import numpy as np
from termrl.engine.compilation import set_up_jax

set_up_jax(Path(sys.argv[1]), ["a model of eighteen million"])
from termrl.engine.architecture import LlamaConfig
from termrl.engine.catalog import PACKAGED
from termrl.engine.llama import init_params
from termrl.engine.models import BaseModel
from termrl.engine.sampler import Sampler
from termrl.engine.sequences import SamplingSettings

config = LlamaConfig(8192, 384, 1536, 7, 6, 2)
assert not config.is_small
base = BaseModel("big", PACKAGED["termrl/tiny"], config, init_params(config, 0))
rng = np.random.default_rng(0)
prompt = rng.integers(2, 8192, 333).astype(np.int32)
settings = SamplingSettings(max_tokens=20, seed=7, stops_at_eos=False)

def answer(sampler, tokens=prompt):
    answers = []
    sampler.sample(tokens, settings, 0, answers.append)
    while sampler.busy:
        sampler.step()
    return answers[0].tokens, answers[0].logprobs

alone, crowd = Sampler(base, base.params), Sampler(base, base.params)
found = [answer(alone), answer(alone)]
for i in range(40):
    # Some share the head; some are longer and move the cache's buckets.
    tail = rng.integers(2, 8192, rng.integers(1, 300))
    other = np.concatenate([prompt[: rng.integers(1, 333)], tail]).astype(np.int32)
    own = SamplingSettings(max_tokens=int(rng.integers(1, 30)), seed=i, stops_at_eos=False)
    crowd.sample(other, own, 0, lambda _: None)
crowd.step()
found += [answer(crowd), answer(crowd)]
# What was an answer is part of the prompt: computed one by one before, in pieces now.
longer = np.concatenate([prompt, found[0][0]]).astype(np.int32)
again = [answer(alone, longer), answer(Sampler(base, base.params), longer)]
print(json.dumps([found, again]))
"""


def test_a_seed_gives_the_same_bits_in_every_batch_on_however_many_cores(cache_dir: Path) -> None:
    printed = []
    for threads in ("1", "4"):
        command = [sys.executable, "-c", ON_EVERY_CORE, str(cache_dir)]
        environment = os.environ | {"NPROC": threads}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        printed.append(json.loads(done.stdout))
        for group in printed[-1]:
            for tokens, logprobs in group:
                assert tokens == group[0][0]
                assert logprobs == group[0][1]
    assert printed[0] == printed[1]


@pytest.mark.parametrize("loss", ["cross_entropy", "ppo", "gspo"])
@pytest.mark.parametrize("train_unembed", [True, False])
def test_an_adapter_gets_the_gradients_that_go_through_the_merge(
    base: BaseModel, big: BaseModel, monkeypatch: pytest.MonkeyPatch, loss: str, train_unembed: bool
) -> None:
    rng = np.random.default_rng(2)
    monkeypatch.setattr(llama, "LOGIT_BUDGET", 16 * big.config.vocab_size)

    def datum(size: int) -> Datum:
        tokens = rng.integers(2, 97, size + 1)
        weights, sampled = rng.normal(size=size), rng.normal(-4.5, 0.1, size)
        return Datum(tokens[:-1], tokens[1:], weights.astype(np.float32), sampled.astype(np.float32))

    data = [datum(size) for size in (20, 33, 64)]
    spec = LoraSpec(4, train_unembed=train_unembed)

    def trained(own: BaseModel) -> tuple[Lora, list[np.ndarray]]:
        # Weights as big as the fixture's magnify rounding, which is in an order that the processor decides.
        calm = jax.tree.map(lambda x: x / 2 if x.ndim > 1 else x, own.params)
        trainer = Trainer(dataclasses.replace(own, params=calm), spec, 0)
        noise = np.random.default_rng(3)
        trainer.load(
            jax.tree.map(lambda x: x + 0.02 * noise.standard_normal(x.shape, np.float32), trainer.lora), None
        )
        running = trainer.run(data, loss, {}, backward=True)
        while True:
            try:
                next(running)
            except StopIteration as end:
                assert trainer._gradients is not None
                return trainer._gradients, end.value.logprobs

    found, logprobs = trained(big)
    monkeypatch.setattr(architecture, "SMALL_PARAMETERS", 1 << 30)
    expected, expected_logprobs = trained(base)
    for mine, other in zip(logprobs, expected_logprobs, strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-4)
    for mine, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-4 * float(np.abs(other).max()))
