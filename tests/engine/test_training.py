from __future__ import annotations

import dataclasses
from collections.abc import Generator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from termrl.engine.adam import AdamSettings, adam_step, global_norm, init_adam
from termrl.engine.batches import plan
from termrl.engine.llama import target_logprobs
from termrl.engine.lora import Lora, LoraSpec, merge
from termrl.engine.losses import (
    LOSSES,
    LossError,
    LossSettings,
    TokenInputs,
    find_loss,
    read_settings,
    token_loss,
)
from termrl.engine.models import BaseModel
from termrl.engine.rows import Datum
from termrl.engine.trainer import DatumError, GradientError, PassResult, Trainer


def finish(run: Generator[Any, None, PassResult]) -> PassResult:
    while True:
        try:
            next(run)
        except StopIteration as end:
            result: PassResult = end.value
            return result


def make_trainer(base: BaseModel, *, rank: int = 4, seed: int = 0) -> Trainer:
    """A trainer on calmer weights, whose adapter is not at zero, so that every factor has a gradient."""
    calm = jax.tree.map(lambda x: x / 4 if x.ndim > 1 else x, base.params)
    trainer = Trainer(dataclasses.replace(base, params=calm), LoraSpec(rank), seed)
    rng = np.random.default_rng(1)
    for pair in trainer.lora.values():
        pair["b"] = jnp.asarray(rng.normal(0, 0.02, pair["b"].shape), jnp.float32)
    return trainer


def make_data(lengths: Sequence[int], seed: int = 0) -> list[Datum]:
    rng = np.random.default_rng(seed)
    return [
        Datum(
            tokens=rng.integers(0, 97, n),
            targets=rng.integers(0, 97, n),
            weights=rng.normal(size=n).astype(np.float32),
            sampled=rng.uniform(-5, -3, n).astype(np.float32),
        )
        for n in lengths
    ]


def reference_costs(name: str, logprobs: jax.Array, datum: Datum) -> jax.Array:
    """The losses written down plainly, with their default settings."""
    stop, weights = jax.lax.stop_gradient, jnp.asarray(datum.weights)
    gap = logprobs - jnp.asarray(datum.sampled)
    ratio = jnp.exp(gap)
    sequence = jnp.exp(stop(gap[np.flatnonzero(datum.weights)].mean()) + logprobs - stop(logprobs))
    formulas = {
        "cross_entropy": lambda: -logprobs * weights,
        "importance_sampling": lambda: -ratio * weights,
        "ppo": lambda: -jnp.minimum(ratio * weights, jnp.clip(ratio, 0.8, 1.2) * weights),
        "cispo": lambda: -stop(jnp.clip(ratio, 0.0, 4.0)) * logprobs * weights,
        "dro": lambda: -(logprobs * weights - 0.5 * 0.05 * gap**2),
        "gspo": lambda: -jnp.minimum(sequence * weights, jnp.clip(sequence, 0.8, 1.2) * weights),
        "stable_reinforce": lambda: -logprobs * weights + 0.01 * (ratio - 1 - gap),
    }
    return formulas[name]()


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_sums_as_defined_and_forward_agrees_with_backward(base: BaseModel, name: str) -> None:
    trainer, data = make_trainer(base), make_data([40, 64, 9])
    both = finish(trainer.run(data, name, {}, backward=True))
    only = finish(trainer.run(data, name, {}, backward=False))
    for datum, logprobs, cost in zip(data, both.logprobs, both.costs, strict=True):
        assert logprobs.shape == cost.shape == datum.tokens.shape
        np.testing.assert_allclose(cost, reference_costs(name, jnp.asarray(logprobs), datum), rtol=1e-4)
    assert both.loss == pytest.approx(sum(float(cost.sum()) for cost in both.costs), rel=1e-5)
    assert only.loss == pytest.approx(both.loss, rel=1e-4)
    np.testing.assert_allclose(only.logprobs[1], both.logprobs[1], atol=1e-4)


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_agree_with_autodiff_of_the_plain_loss(base: BaseModel, name: str) -> None:
    trainer, data = make_trainer(base), make_data([40, 64, 9])
    finish(trainer.run(data, name, {}, backward=True))

    def plain(lora: Lora) -> jax.Array:
        params = merge(trainer.base.params, lora)
        total = jnp.zeros(())
        for datum in data:
            tokens, targets = jnp.asarray(datum.tokens)[None], jnp.asarray(datum.targets)[None]
            logprobs = target_logprobs(params, base.config, tokens, targets)[0]
            total += reference_costs(name, logprobs, datum).sum()
        return total

    expected = jax.jit(jax.grad(plain))(trainer.lora)
    scale = float(global_norm(expected))
    jax.tree.map(
        lambda found, right: np.testing.assert_allclose(found, right, rtol=1e-3, atol=1e-5 * scale),
        trainer._gradients,
        expected,
    )


# The other losses stop gradients on purpose: their value's slope is not their gradient.
@pytest.mark.parametrize("name", ["cross_entropy", "importance_sampling", "ppo", "dro", "stable_reinforce"])
def test_gradients_agree_with_finite_differences(base: BaseModel, name: str) -> None:
    trainer, data = make_trainer(base), make_data([40, 64, 9])
    finish(trainer.run(data, name, {}, backward=True))
    gradients = trainer._gradients
    assert gradients is not None
    start = trainer.lora
    rng = np.random.default_rng(2)
    direction = jax.tree.map(
        lambda g: g / global_norm(gradients) + 0.02 * rng.normal(size=g.shape), gradients
    )

    def loss_at(step: float) -> float:
        moved = jax.tree.map(lambda w, d: jnp.asarray(w + step * d, jnp.float32), start, direction)
        trainer.load(moved, None)
        return finish(trainer.run(data, name, {}, backward=False)).loss

    expected = sum(
        float((g * d).sum()) for g, d in zip(*map(jax.tree.leaves, (gradients, direction)), strict=True)
    )
    step = 1e-3
    slope = (loss_at(step) - loss_at(-step)) / (2 * step)
    assert slope == pytest.approx(expected, rel=0.03)


def test_clipped_tokens_have_no_gradient_and_masked_tokens_cannot_make_it_nan() -> None:
    def cost(logprobs: jax.Array, weights: list[float], sampled: list[float]) -> jax.Array:
        row = jnp.asarray([weights])
        inputs = TokenInputs(
            row, jnp.asarray([sampled]), row * 0 + 0.8, row * 0 + 1.2, row * 0, row.astype(int) * 0
        )
        return token_loss(jnp.asarray(2), logprobs[None], inputs, jnp.zeros(())).sum()

    logprobs = jnp.asarray([-1.0, -1.0, -1.0])
    # A ratio above the range with a positive advantage, one inside it, and a masked one that overflows.
    gradient = jax.grad(cost)(logprobs, [1.0, 1.0, 0.0], [-2.0, -1.0, -1e4])
    np.testing.assert_allclose(gradient, [0.0, -1.0, 0.0])


def test_settings_come_from_the_config_and_unknown_ones_are_refused() -> None:
    assert read_settings("ppo", {}) == LossSettings(0.8, 1.2)
    assert read_settings("cispo", {"clip_high_threshold": 3.0}) == LossSettings(0.0, 3.0)
    assert read_settings("dro", {"beta": 0.5}).coefficient == 0.5
    with pytest.raises(LossError, match="clip_low_threshold, clip_high_threshold"):
        read_settings("ppo", {"clip_lo": 0.5})
    with pytest.raises(LossError, match="takes none"):
        read_settings("cross_entropy", {"clip_low_threshold": 0.5})
    with pytest.raises(LossError, match="0 or more"):
        read_settings("dro", {"beta": -1.0})
    with pytest.raises(LossError, match="no loss 'hinge'; it has cross_entropy, importance_sampling"):
        find_loss("hinge")
    with pytest.raises(LossError, match="forward_backward_custom"):
        find_loss("custom")


def test_a_token_may_have_its_own_clip_range_and_a_sequence_its_own_ratio_mask(base: BaseModel) -> None:
    trainer, [datum] = make_trainer(base), make_data([12])
    wide = dataclasses.replace(datum, low=np.zeros(12), high=np.full(12, np.inf))
    free = finish(trainer.run([datum], "importance_sampling", {}, backward=False))
    assert finish(trainer.run([wide], "ppo", {}, backward=False)).loss == pytest.approx(free.loss, rel=1e-5)
    first = dataclasses.replace(wide, mask=(np.arange(12) == 0).astype(np.float32))
    found = finish(trainer.run([first], "gspo", {}, backward=False))
    ratio = np.exp(found.logprobs[0][0] - datum.sampled[0])
    np.testing.assert_allclose(found.costs[0], -ratio * datum.weights, rtol=1e-4)


def test_cross_entropy_takes_several_targets_a_token(base: BaseModel) -> None:
    trainer, [one, two] = make_trainer(base), make_data([12, 30])
    several = dataclasses.replace(
        one,
        targets=np.stack([one.targets, one.targets[::-1], one.tokens], axis=1),
        weights=np.stack([one.weights, one.weights * 0, one.weights * 2], axis=1),
    )
    mixed = finish(trainer.run([several, two], "cross_entropy", {}, backward=True))
    gradients = trainer._gradients
    assert [row.shape for row in mixed.logprobs] == [(12, 3), (30,)]
    plain = make_trainer(base)
    copy = dataclasses.replace(one, targets=one.tokens, weights=one.weights * 2)
    single = finish(plain.run([one, copy, two], "cross_entropy", {}, backward=True))
    np.testing.assert_allclose(mixed.logprobs[0][:, 0], single.logprobs[0], atol=1e-5)
    np.testing.assert_allclose(mixed.logprobs[0][:, 2], single.logprobs[1], atol=1e-5)
    assert mixed.loss == pytest.approx(single.loss, rel=1e-4)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), gradients, plain._gradients
    )


def test_full_fine_tuning_changes_every_weight_and_starts_from_the_base(base: BaseModel) -> None:
    trainer, data = Trainer(base, LoraSpec(0), 0), make_data([40, 20])
    before = finish(trainer.run(data, "cross_entropy", {}, backward=False)).loss
    plain = finish(Trainer(base, LoraSpec(4), 0).run(data, "cross_entropy", {}, backward=False)).loss
    assert before == pytest.approx(plain, rel=1e-6)
    finish(trainer.run(data, "cross_entropy", {}, backward=True))
    trainer.optim_step(AdamSettings(learning_rate=1e-3))
    assert finish(trainer.run(data, "cross_entropy", {}, backward=False)).loss < before
    start = Trainer(base, LoraSpec(0), 0).lora
    assert set(start) >= {"embed", "final_norm", "q", "down", "attn_norm"}
    for name, pair in trainer.lora.items():
        assert not np.array_equal(pair["w"], start[name]["w"]), name


def test_alpha_scales_the_adapters_update(base: BaseModel) -> None:
    half, whole = (Trainer(base, LoraSpec(4, alpha=alpha), 0) for alpha in (16.0, 32.0))
    for trainer in (half, whole):
        trainer.load(make_trainer(base).lora, None)
    change = [trainer.merged_params().layers.q - base.params.layers.q for trainer in (half, whole)]
    np.testing.assert_allclose(2 * change[0], change[1], rtol=1e-3, atol=1e-6)


def test_adam_agrees_with_a_plain_version_with_decay_and_clipping() -> None:
    rng = np.random.default_rng(0)
    weights = {"a": rng.normal(size=(3, 4)).astype(np.float32), "b": rng.normal(size=5).astype(np.float32)}
    settings = AdamSettings(
        learning_rate=0.01, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, grad_clip_norm=1.0
    )
    found, state = jax.tree.map(jnp.asarray, weights), init_adam(weights)
    expected = {name: value.astype(np.float64) for name, value in weights.items()}
    mean = {name: np.zeros_like(value) for name, value in expected.items()}
    square = {name: np.zeros_like(value) for name, value in expected.items()}
    for step in range(1, 4):
        gradients = {name: rng.normal(size=value.shape).astype(np.float32) for name, value in weights.items()}
        found, state = adam_step(found, gradients, state, global_norm(gradients), settings)
        norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in gradients.values()))
        for name, raw in gradients.items():
            g = raw * min(1.0, 1.0 / norm)
            mean[name] = 0.9 * mean[name] + 0.1 * g
            square[name] = 0.95 * square[name] + 0.05 * g**2
            expected[name] *= 1 - 0.01 * 0.1
            update = mean[name] / (1 - 0.9**step) / (np.sqrt(square[name] / (1 - 0.95**step)) + 1e-8)
            expected[name] -= 0.01 * update
    for name in weights:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-6)


def test_a_datum_gives_the_same_logprobs_whatever_shares_its_row(base: BaseModel) -> None:
    trainer, data = make_trainer(base), make_data([40, 64, 9, 200, 130])
    together = finish(trainer.run(data, "cross_entropy", {}, backward=False))
    for datum, found in zip(data, together.logprobs, strict=True):
        alone = finish(trainer.run([datum], "cross_entropy", {}, backward=False))
        np.testing.assert_allclose(found, alone.logprobs[0], atol=2e-5)


def test_a_pass_that_fails_leaves_no_gradient(base: BaseModel) -> None:
    trainer = make_trainer(base)
    good, bad = make_data([40, 9])
    bad.weights[0] = np.nan
    with pytest.raises(DatumError, match="not finite"):
        finish(trainer.run([good, bad], "cross_entropy", {}, backward=True))
    with pytest.raises(GradientError, match="no gradients"):
        trainer.optim_step(AdamSettings())


@pytest.mark.parametrize(
    ("change", "said"),
    [({"tokens": np.array([97])}, "vocabulary"), ({"targets": np.array([-1])}, "vocabulary")],
)
def test_ids_outside_the_vocabulary_are_refused(base: BaseModel, change: dict[str, Any], said: str) -> None:
    fields = {name: np.zeros(1) for name in ("tokens", "targets", "weights", "sampled")}
    with pytest.raises(DatumError, match=said):
        finish(make_trainer(base).run([Datum(**(fields | change))], "cross_entropy", {}, backward=False))


@pytest.mark.parametrize(
    ("low", "high", "count", "shapes"),
    [(70, 200, 72, 3), (20, 200, 64, 3), (300, 301, 32, 2), (100, 1500, 64, 10), (1000, 8000, 64, 18)],
    ids=["turns of termrl/tiny", "short", "of one length", "mixed", "long"],
)
def test_a_plan_places_every_token_once_with_under_15_per_cent_of_padding(
    low: int, high: int, count: int, shapes: int
) -> None:
    lengths = np.random.default_rng(0).integers(low, high, count).tolist()
    batches = plan(lengths)
    assert sorted(place.member for batch in batches for place in batch.places) == list(range(count))
    for batch in batches:
        taken = np.zeros((batch.height, batch.length), int)
        for place in batch.places:
            end = place.start + lengths[place.member]
            assert end <= batch.length
            taken[place.row, place.start : end] += 1
        assert taken.max() == 1
    computed = sum(batch.height * batch.length for batch in batches)
    assert 1 - sum(lengths) / computed < 0.15
    assert len({(batch.height, batch.length) for batch in batches}) <= shapes
    assert plan(lengths) == batches
