"""What the learner thinks of the tokens is what the sampler thought of them."""

from pathlib import Path
from typing import Any

import numpy as np
import tinker

from termrl.cache import cache_directory
from termrl.engine.catalog import resolve_model
from termrl.engine.process import start_engine
from termrl.learn.datums import supervised_datum
from termrl.policy.rendering import make_renderer
from termrl.policy.sampler import TinkerSampler
from termrl.policy.tokenizer import load_tokenizer
from termrl.policy.transcript import segments_of
from termrl.rollout.runner import RolloutRunner
from termrl.rollout.settings import RolloutSettings

MODEL = "termrl/tiny"


async def test_recomputed_logprobs_are_the_sampled_ones_to_a_thousandth(bench: Any, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(resolve_model(MODEL))
    renderer = make_renderer(tokenizer, MODEL)
    async with start_engine(
        tmp_path / "engine",
        models=(MODEL,),
        log_path=tmp_path / "engine.log",
        cache_dir=cache_directory() / "compiled",
    ) as engine:
        with tinker.ServiceClient(base_url=engine.base_url, api_key=engine.api_key) as service:
            learner = await service.create_lora_training_client_async(base_model=MODEL, rank=4, seed=0)
            client = await learner.save_weights_and_get_sampling_client_async()
            sampler = TinkerSampler(
                client, policy_version=0, stop=renderer.get_stop_token_ids(), temperature=1.0
            )
            settings = RolloutSettings(
                model_name=MODEL,
                trials_dir=tmp_path / "trials",
                max_turns=3,
                max_tokens=96,
                context_limit=4096,
            )
            rollout = await RolloutRunner(settings, renderer).run(bench.task, sampler, seed=5)
            assert rollout.outcome.scored, rollout.detail
            segments = segments_of(rollout.turns)
            datums = [supervised_datum(segment) for segment in segments]
            result = await (await learner.forward_async(datums, "cross_entropy")).result_async()
    gaps = []
    for segment, output in zip(segments, result.loss_fn_outputs, strict=True):
        mask = np.asarray(segment.mask[1:])
        recomputed = np.asarray(output["logprobs"].to_numpy())[mask]
        gaps.append(np.abs(recomputed - np.asarray(segment.logprobs[1:])[mask]))
    assert sum(map(len, gaps)) > 10
    assert float(np.concatenate(gaps).max()) < 1e-3
