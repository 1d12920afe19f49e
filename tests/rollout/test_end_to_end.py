"""The whole way of a rollout: engine in its own process, the real SDK, Harbor, Terminus-2, a real sandbox."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import tinker

from termrl.engine.architecture import LlamaConfig
from termrl.engine.llama import init_params
from termrl.engine.process import start_engine
from termrl.engine.weights import save_model
from termrl.policy.chatml import ChatMLRenderer
from termrl.policy.sampler import ModelUnavailableError, SamplingRefusedError, TinkerSampler
from termrl.policy.tokenizer import FileTokenizer
from termrl.policy.transcript import segments_of
from termrl.rollout.outcome import Outcome

CONTEXT = 6144


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory, tokenizer: FileTokenizer) -> Path:
    """A model with random weights that speaks the tests' byte-level tokenizer."""
    directory = tmp_path_factory.mktemp("model")
    source = Path(tokenizer.name_or_path) / "tokenizer.json"
    (directory / "tokenizer.json").write_bytes(source.read_bytes())
    config = LlamaConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=CONTEXT,
    )
    save_model(directory, config, init_params(config, seed=0))
    return directory


@pytest.fixture
async def client(model_dir: Path, tmp_path: Path) -> AsyncIterator[tinker.SamplingClient]:
    state, log = tmp_path / "engine", tmp_path / "engine.log"
    async with start_engine(state, models=[str(model_dir)], log_path=log) as engine:
        with tinker.ServiceClient(base_url=engine.base_url, api_key=engine.api_key) as service:
            yield await service.create_sampling_client_async(base_model=str(model_dir))


async def test_a_rollout_of_the_engines_model_is_token_exact_and_the_same_again(
    bench: Any, client: tinker.SamplingClient, renderer: ChatMLRenderer
) -> None:
    stop = renderer.get_stop_token_ids()
    sampler = TinkerSampler(client, policy_version=0, stop=stop, temperature=1.0)
    settings = {"max_turns": 2, "max_tokens": 24, "context_limit": CONTEXT}
    rollout = await bench.run(sampler, seed=11, **settings)
    assert rollout.outcome in (Outcome.UNPARSABLE, Outcome.FAILED), rollout.detail
    assert rollout.reward == 0.0
    assert len(rollout.turns) == 2
    assert all(turn.seconds > 0 for turn in rollout.turns)
    (segment,) = segments_of(rollout.turns)
    scored = await client.compute_logprobs_async(tinker.ModelInput.from_ints(list(segment.tokens)))
    for was, logprob, again in zip(segment.mask, segment.logprobs, scored, strict=True):
        if was:
            assert again == pytest.approx(logprob, abs=1e-3)
    repeated = await bench.run(sampler, seed=11, **settings)
    assert [turn.sampled for turn in repeated.turns] == [turn.sampled for turn in rollout.turns]
    other = await bench.run(sampler, seed=12, **settings)
    assert other.turns[0].sampled != rollout.turns[0].sampled


async def test_what_the_engine_refuses_is_the_users_to_mend(
    client: tinker.SamplingClient, renderer: ChatMLRenderer
) -> None:
    sampler = TinkerSampler(client, policy_version=0, stop=renderer.get_stop_token_ids())
    with pytest.raises(SamplingRefusedError):
        await sampler.sample([10_000_000], max_tokens=4, seed=0)
    with pytest.raises((SamplingRefusedError, ModelUnavailableError)):
        await sampler.sample([1] * (CONTEXT + 1), max_tokens=4, seed=0)
