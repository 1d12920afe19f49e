from pathlib import Path

import pytest

from termrl.config import TrainConfig
from termrl.learn.estimate import estimate_step
from termrl.learn.meter import Spent, rollout_spent
from termrl.learn.prices import PriceError, Prices, read_prices
from termrl.policy.transcript import Turn
from termrl.rollout.outcome import Outcome
from termrl.rollout.record import Rollout, Timings

SERVER = "http://127.0.0.1:1"


def test_the_embedded_engine_costs_nothing_whatever_the_model() -> None:
    assert read_prices(TrainConfig(model_name="some/model", max_cost=1.0)) == Prices(0.0, 0.0, 0.0, 0.0)


def test_prices_ship_and_a_file_goes_over_them(tmp_path: Path) -> None:
    shipped = read_prices(TrainConfig(model_name="termrl/tiny", base_url=SERVER))
    assert shipped == Prices(0.0, 0.0, 0.0, 0.0)
    unpriced = read_prices(TrainConfig(model_name="Qwen/Qwen3-8B", base_url=SERVER))
    assert unpriced == Prices(None, None, None, 0.0)
    file = tmp_path / "prices.toml"
    file.write_text(
        '[models]\n"Qwen/Qwen3-8B" = { prefill = 1, sample = 2.5, train = 3 }\n[sandboxes]\nmodal = 0.5\n'
    )
    mine = read_prices(
        TrainConfig(model_name="Qwen/Qwen3-8B", base_url=SERVER, environment_type="modal", prices=str(file))
    )
    assert mine == Prices(1, 2.5, 3, 0.5)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"model_name": "some/model"}, "no price for some/model"),
        ({"model_name": "Qwen/Qwen3-8B", "environment_type": "modal"}, "an hour of a sandbox of modal"),
    ],
)
def test_a_limit_in_money_without_a_price_is_refused_by_name(settings: dict[str, str], sentence: str) -> None:
    with pytest.raises(PriceError, match=sentence) as refusal:
        read_prices(TrainConfig(base_url=SERVER, max_cost=1.0, **settings))  # type: ignore[arg-type]
    assert refusal.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[models", "not TOML"),
        ("[models]\nm = { prefill = 1 }", "the model 'm' needs prefill, sample, train"),
        ("[models]\nm = { prefill = -1, sample = 1, train = 1 }", "a price of 0 or more"),
        ("[sandboxes]\nmodal = 'dear'", "the sandbox 'modal' needs a price per hour"),
    ],
)
def test_a_file_of_prices_that_is_none_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(text)
    with pytest.raises(PriceError, match=sentence):
        read_prices(TrainConfig(prices=str(file)))
    with pytest.raises(PriceError, match="could not be read"):
        read_prices(TrainConfig(prices=str(tmp_path / "nothing.toml")))


def test_tokens_and_sandbox_seconds_come_to_dollars() -> None:
    spent = Spent(
        prefill_tokens=2_000_000, sampled_tokens=1_000_000, trained_tokens=500_000, sandbox_seconds=1800
    )
    assert spent.tokens == 3_500_000
    assert spent.cost(Prices(1.0, 2.0, 4.0, 0.5)) == pytest.approx(2 + 2 + 2 + 0.25)
    assert spent.cost(Prices(1.0, 2.0, 4.0, None)) is None


def rollout(*turns: Turn) -> Rollout:
    return Rollout("t", Outcome.SOLVED, 1.0, turns, Timings(total=3.0))


ROLLOUT = rollout(
    Turn((1,) * 100, (2,) * 20, (0.0,) * 20, 0, "stop"),
    Turn((1,) * 100 + (2,) * 20 + (3,) * 30, (4,) * 10, (0.0,) * 10, 0, "stop"),
)


def test_a_rollout_is_metered_by_what_it_read_wrote_and_held() -> None:
    assert rollout_spent(ROLLOUT) == Spent(prefill_tokens=250, sampled_tokens=30, sandbox_seconds=3.0)


def test_an_estimate_is_in_proportion_and_its_most_is_what_the_settings_allow() -> None:
    config = TrainConfig(batch_size=2, group_size=4, max_turns=3, max_tokens=50, n_parallel_envs=4)
    estimate = estimate_step([ROLLOUT, ROLLOUT], config, Prices(1.0, 1.0, 1.0, 0.0), context=300, steps=10)
    assert estimate.scripted.prefill_tokens == 8 * 250
    assert estimate.scripted.sampled_tokens == 8 * 30
    assert estimate.scripted.trained_tokens == 8 * 159
    assert estimate.scripted.seconds == 6.0
    assert estimate.most.prefill_tokens == 8 * (100 + 180 + 260)
    assert estimate.most.sampled_tokens == 8 * (50 + 50 + 40)
    assert estimate.most.trained_tokens == 8 * 300
    text = "\n".join(estimate.lines())
    assert "nothing was spent" in text
    assert "8 rollouts" in text
    assert f"${8 * (250 + 30 + 159) / 1e6:.4f}" in text
