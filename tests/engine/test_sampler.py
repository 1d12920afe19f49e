from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from termrl.engine.llama import target_logprobs
from termrl.engine.models import BaseModel
from termrl.engine.prefixes import PrefixStore
from termrl.engine.sampler import Sampler
from termrl.engine.sequences import Answer, SamplingSettings
from termrl.engine.shapes import position_bytes
from termrl.engine.slots import Slots, begin_decoding


def run_all(sampler: Sampler) -> None:
    while sampler.busy:
        sampler.step()


def sample(sampler: Sampler, prompt: list[int], settings: SamplingSettings, index: int = 0) -> Answer:
    answers: list[Answer] = []
    sampler.sample(np.asarray(prompt, np.int32), settings, index, answers.append)
    run_all(sampler)
    return answers[0]


def next_logits(base: BaseModel, prompt: list[int]) -> np.ndarray:
    """log p of every token of the vocabulary after a prompt."""
    tokens = np.zeros((97, 128), np.int32)
    tokens[:, : len(prompt)] = prompt
    targets = np.zeros((97, 128), np.int32)
    targets[:, len(prompt) - 1] = np.arange(97)
    found = target_logprobs(base.params, base.config, jnp.asarray(tokens), jnp.asarray(targets))
    return np.asarray(found[:, len(prompt) - 1])


SETTINGS = SamplingSettings(max_tokens=40, seed=7, stops_at_eos=False)
PROMPT = np.random.default_rng(0).integers(2, 97, 150).tolist()


def test_sampled_logprobs_are_those_of_the_training_forward(base: BaseModel) -> None:
    settings = dataclasses.replace(SETTINGS, temperature=0.7)
    answer = sample(Sampler(base, base.params), PROMPT, settings)
    assert len(answer.tokens) == len(answer.logprobs) == 40
    whole = np.zeros((1, 256), np.int32)
    whole[0, :190] = PROMPT + answer.tokens
    found = target_logprobs(
        base.params, base.config, jnp.asarray(whole), jnp.roll(jnp.asarray(whole), -1, axis=1)
    )
    np.testing.assert_allclose(answer.logprobs, found[0, 149:189], atol=1e-4)


def test_a_seed_gives_the_same_tokens_whatever_shares_the_batch(base: BaseModel) -> None:
    alone = sample(Sampler(base, base.params), PROMPT, SETTINGS)
    crowd = Sampler(base, base.params)
    rng = np.random.default_rng(1)
    ignored: list[Answer] = []
    for i in range(30):
        # Some share the head, as the turns of one agent do; some are longer and move the cache's buckets.
        other = PROMPT[: rng.integers(1, 150)] + rng.integers(2, 97, rng.integers(1, 120)).tolist()
        settings = dataclasses.replace(SETTINGS, max_tokens=int(rng.integers(1, 40)), seed=100 + i)
        crowd.sample(np.asarray(other, np.int32), settings, 0, ignored.append)
    crowd.step()
    amid = sample(crowd, PROMPT, SETTINGS)
    again = sample(crowd, PROMPT, SETTINGS)
    assert len(ignored) == 30
    assert alone.tokens == amid.tokens == again.tokens
    assert alone.logprobs == amid.logprobs == again.logprobs


@pytest.mark.parametrize(("rows", "positions"), [(63, 512), (8, 2048)])
def test_a_seed_gives_the_same_bits_in_every_shape(base: BaseModel, rows: int, positions: int) -> None:
    expected = sample(Sampler(base, base.params), PROMPT, SETTINGS)
    other = with_shapes(Sampler(base, base.params), slots=(rows,), positions=(positions,))
    found = sample(other, PROMPT, SETTINGS)
    assert found.tokens == expected.tokens
    assert found.logprobs == expected.logprobs


def test_seeds_and_the_samples_of_one_prompt_differ(base: BaseModel) -> None:
    sampler = Sampler(base, base.params)
    first = sample(sampler, PROMPT, SETTINGS)
    assert sample(sampler, PROMPT, SETTINGS, index=1).tokens != first.tokens
    assert sample(sampler, PROMPT, dataclasses.replace(SETTINGS, seed=8)).tokens != first.tokens


def test_a_longer_limit_only_extends_an_answer(base: BaseModel) -> None:
    sampler = Sampler(base, base.params)
    short = sample(sampler, PROMPT, dataclasses.replace(SETTINGS, max_tokens=5))
    assert sample(sampler, PROMPT, SETTINGS).tokens[:5] == short.tokens


@pytest.mark.parametrize(
    "change",
    [{"temperature": 0.0}, {"top_k": 1}, {"top_p": 1e-6}],
    ids=["temperature 0", "top_k 1", "tiny top_p"],
)
def test_greedy_settings_take_the_likeliest_token(base: BaseModel, change: dict[str, float]) -> None:
    settings = dataclasses.replace(SETTINGS, max_tokens=1, **change)
    answer = sample(Sampler(base, base.params), PROMPT[:20], settings)
    assert answer.tokens == [int(next_logits(base, PROMPT[:20]).argmax())]


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, -1, 1.0), (0.5, -1, 1.0), (2.0, -1, 1.0), (2.0, -1, 0.6), (1.5, 4, 1.0)],
)
def test_tokens_are_drawn_from_the_tempered_and_cut_distribution(
    base: BaseModel, temperature: float, top_k: int, top_p: float
) -> None:
    prompt = PROMPT[:20]
    logits = next_logits(base, prompt).astype(np.float64) / temperature
    expected = np.exp(logits) / np.exp(logits).sum()
    order = np.argsort(-expected)
    kept = np.ones(97, bool)
    if top_k > 0:
        kept[order[top_k:]] = False
    if top_p < 1:
        kept[order[np.cumsum(expected[order]) - expected[order] >= top_p]] = False
    expected = np.where(kept, expected, 0) / expected[kept].sum()
    sampler = Sampler(base, base.params)
    counts = np.zeros(97)

    def count(answer: Answer) -> None:
        counts[answer.tokens[0]] += 1

    settings = SamplingSettings(1, 3, temperature, top_k, top_p)
    draws = 2000
    for i in range(draws):
        sampler.sample(np.asarray(prompt, np.int32), settings, i, count)
    run_all(sampler)
    assert counts[~kept].sum() == 0
    # The chi-square test wants five of each; rarer tokens count as one.
    often = expected * draws >= 5
    found = np.append(counts[often], counts[~often].sum())
    wanted = np.append(expected[often], expected[~often].sum()) * draws
    keep = wanted > 0
    assert chisquare(found[keep], wanted[keep]).pvalue > 0.001


def test_an_answer_ends_with_its_stop_id_which_it_keeps(base: BaseModel) -> None:
    sampler = Sampler(base, base.params)
    free = sample(sampler, PROMPT, SETTINGS)
    stop = free.tokens[20]
    first = free.tokens.index(stop)
    answer = sample(sampler, PROMPT, dataclasses.replace(SETTINGS, stop_ids=(stop,)))
    assert answer.stopped
    assert not free.stopped
    assert answer.tokens == free.tokens[: first + 1]
    assert answer.logprobs == free.logprobs[: first + 1]


def test_an_answer_ends_with_the_token_that_completes_a_stop_string(base: BaseModel) -> None:
    sampler = Sampler(base, base.params)
    free = sample(sampler, PROMPT, SETTINGS)
    pair = base.tokenizer.decode(free.tokens[10:12], skip_special_tokens=False)
    answer = sample(sampler, PROMPT, dataclasses.replace(SETTINGS, stop_strings=("nowhere", pair[1:-1])))
    assert answer.stopped
    assert answer.tokens == free.tokens[: len(answer.tokens)]
    assert len(answer.tokens) <= 12
    assert pair[1:-1] in base.tokenizer.decode(answer.tokens, skip_special_tokens=False)


def test_an_unwanted_answer_leaves_and_the_others_stay(base: BaseModel) -> None:
    sampler = Sampler(base, base.params)
    left: list[Answer] = []
    wanted = True
    sampler.sample(np.asarray(PROMPT, np.int32), SETTINGS, 0, left.append, lambda: wanted)
    kept: list[Answer] = []
    sampler.sample(np.asarray(PROMPT, np.int32), SETTINGS, 0, kept.append)
    sampler.step()
    wanted = False
    run_all(sampler)
    assert (len(left), len(kept)) == (0, 1)


def with_shapes(sampler: Sampler, **changes: Any) -> Sampler:
    shapes = dataclasses.replace(sampler._shapes, **changes)
    sampler._shapes, sampler._slots = shapes, Slots(sampler.base, sampler._weights, shapes)
    sampler._prefixes = PrefixStore(shapes.prefix_bytes)
    return sampler


def test_the_cache_of_answers_under_way_keeps_to_its_bytes(base: BaseModel) -> None:
    row = position_bytes(base.config)
    limit = 8 * 256 * row
    sampler = with_shapes(Sampler(base, base.params), cache_bytes=limit)
    base.programs.get(begin_decoding(base, sampler._weights, 32, 64))
    settings = dataclasses.replace(SETTINGS, max_tokens=100)
    answers: dict[int, Answer] = {}
    for index in range(20):
        # Together they fit at first and outgrow the limit as they get longer: some are set back.
        sampler.sample(
            np.asarray(PROMPT[:30], np.int32), settings, index, partial(answers.__setitem__, index)
        )
    largest = set_back = 0
    while sampler.busy:
        sampler.step()
        set_back += any(len(sequence.answer.tokens) > 0 for sequence in sampler._waiting)
        largest = max(largest, sampler._slots.cache_bytes)
    assert 0 < largest <= limit
    assert set_back > 0, "none was set back: the test shows nothing"
    free = Sampler(base, base.params)
    for index in range(20):
        expected = sample(free, PROMPT[:30], settings, index)
        assert answers[index].tokens == expected.tokens
        np.testing.assert_allclose(answers[index].logprobs, expected.logprobs, atol=1e-4)


def test_held_prefixes_keep_to_their_bytes_and_the_least_recently_used_go_first(base: BaseModel) -> None:
    block = Sampler(base, base.params)._shapes.prefill_block
    limit = 6 * block * position_bytes(base.config)
    sampler = with_shapes(Sampler(base, base.params), prefix_bytes=limit)
    settings = dataclasses.replace(SETTINGS, max_tokens=1)
    rng = np.random.default_rng(3)
    first, *others = (rng.integers(2, 97, 4 * block + 1).tolist() for _ in range(4))
    assert sample(sampler, first, settings).cached_tokens == 0
    assert sample(sampler, first, settings).cached_tokens == 4 * block
    for other in others:
        sample(sampler, other, settings)
        assert sampler._prefixes.held_bytes <= limit
    assert sample(sampler, others[-1], settings).cached_tokens == 4 * block
    assert sample(sampler, first, settings).cached_tokens == 0
