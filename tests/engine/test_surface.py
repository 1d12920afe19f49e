"""Every public method of the SDK's clients is served here, or is listed as refused on purpose."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
import tinker
from safetensors.numpy import load as load_tensors
from tinker import types
from tinker.lib.public_interfaces.sampling_client import SamplingClient

from termrl.engine.process import EngineHandle

PROMPT = types.ModelInput.from_ints(np.random.default_rng(0).integers(2, 97, 30).tolist())
PARAMS = types.SamplingParams(max_tokens=4, seed=1)

REFUSED = {
    "RestClient.publish_checkpoint_from_tinker_path": "publishes no checkpoints",
    "RestClient.unpublish_checkpoint_from_tinker_path": "publishes no checkpoints",
    "RestClient.assign_session_project": "has no projects",
    "RestClient.export_session_trace": "records no traces",
    "RestClient.get_audit_log": "keeps no audit log",
    "RestClient.get_billing_usage": "sends no bills",
    "RestClient.get_current_checkpoint_storage_usage": "sends no bills",
}
"""What an engine on one machine has not got, and what it says."""

NO_REQUEST = {
    "RestClient.whoami": "reads a web token that only the hosted service has",
    "ServiceClient.create_custom_loss": "traces the loss with torch, in the client",
    "TrainingClient.forward_backward_custom": "is forward and cross_entropy, with torch in the client",
    "ServiceClient.get_console_url": "a link to the hosted service",
    "TrainingClient.get_console_url": "a link to the hosted service",
    "SamplingClient.from_sampler_handle": "static",
    "SamplingClient.create": "static",
    "SamplingClient.on_queue_state_change": "a callback",
    "SamplingClient.get_sampler_handle": "local",
    "ServiceClient.create_rest_client": "local",
}


def datum(tokens: list[int], **inputs: Any) -> types.Datum:
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)} | inputs,
    )


@pytest.fixture(scope="module")
def walk(
    engine: EngineHandle, model_dir: Path, connect: Callable[[EngineHandle], tinker.ServiceClient]
) -> dict[str, Callable[[], Any]]:
    """One call of every public method, by its name."""
    service = connect(engine)
    rest = tinker.RestClient(base_url=engine.base_url, api_key=engine.api_key)
    project = tinker.ServiceClient(base_url=engine.base_url, api_key=engine.api_key, project_id="any")
    trainee = service.create_lora_training_client(str(model_dir), rank=2, seed=0)
    sampler = service.create_sampling_client(base_model=str(model_dir))
    state = trainee.save_state("walk").result().path
    external = trainee.save_weights_external("walk").result().path
    spare = [trainee.save_state(f"spare-{i}").result().path for i in range(2)]
    data = [datum(list(range(2, 12)))]
    session_id, run_id = service.holder.get_session_id(), trainee.model_id

    def step() -> Any:
        trainee.forward_backward(data, "cross_entropy").result()
        return trainee.optim_step(types.AdamParams()).result()

    return {
        "ServiceClient.get_server_capabilities": service.get_server_capabilities,
        "ServiceClient.create_lora_training_client": lambda: trainee,
        "ServiceClient.create_training_client_from_state": lambda: service.create_training_client_from_state(
            state
        ),
        "ServiceClient.create_training_client_from_state_with_optimizer": lambda: (
            service.create_training_client_from_state_with_optimizer(state)
        ),
        "ServiceClient.create_sampling_client": lambda: service.create_sampling_client(model_path=state),
        "ServiceClient.copy_weights": lambda: project.copy_weights(state, ttl_seconds=3600).result(),
        "ServiceClient.close": lambda: connect(engine).close("success").result(),
        "TrainingClient.forward": lambda: trainee.forward(data, "cross_entropy").result(),
        "TrainingClient.forward_backward": step,
        "TrainingClient.optim_step": step,
        "TrainingClient.save_state": lambda: trainee.save_state("again").result(),
        "TrainingClient.load_state": lambda: trainee.load_state(state).result(),
        "TrainingClient.load_state_with_optimizer": lambda: trainee.load_state_with_optimizer(state).result(),
        "TrainingClient.save_weights_for_sampler": lambda: trainee.save_weights_for_sampler("s").result(),
        "TrainingClient.save_weights_external": lambda: trainee.save_weights_external("e").result(),
        "TrainingClient.save_weights_and_get_sampling_client": trainee.save_weights_and_get_sampling_client,
        "TrainingClient.create_sampling_client": lambda: trainee.create_sampling_client(state),
        "TrainingClient.get_info": trainee.get_info,
        "TrainingClient.get_tokenizer": trainee.get_tokenizer,
        "SamplingClient.sample": lambda: sampler.sample(PROMPT, 1, PARAMS).result(),
        "SamplingClient.compute_logprobs": lambda: sampler.compute_logprobs(PROMPT).result(),
        "SamplingClient.get_tokenizer": sampler.get_tokenizer,
        "SamplingClient.get_base_model": sampler.get_base_model,
        "RestClient.get_training_run": lambda: rest.get_training_run(run_id).result(),
        "RestClient.get_training_run_by_tinker_path": lambda: rest.get_training_run_by_tinker_path(
            state
        ).result(),
        "RestClient.get_weights_info_by_tinker_path": lambda: rest.get_weights_info_by_tinker_path(
            state
        ).result(),
        "RestClient.list_training_runs": lambda: rest.list_training_runs(limit=1).result(),
        "RestClient.list_checkpoints": lambda: rest.list_checkpoints(run_id).result(),
        "RestClient.list_user_checkpoints": lambda: rest.list_user_checkpoints(limit=1).result(),
        "RestClient.get_external_weights_urls": lambda: rest.get_external_weights_urls(external).result(),
        "RestClient.delete_checkpoint": lambda: rest.delete_checkpoint(
            run_id, "/".join(spare[0].split("/")[-2:])
        ).result(),
        "RestClient.delete_checkpoint_from_tinker_path": lambda: rest.delete_checkpoint_from_tinker_path(
            spare[1]
        ).result(),
        "RestClient.copy_weights": lambda: rest.copy_weights(state, "anywhere").result(),
        "RestClient.set_checkpoint_ttl_from_tinker_path": lambda: rest.set_checkpoint_ttl_from_tinker_path(
            state, 7200
        ).result(),
        "RestClient.get_session": lambda: rest.get_session(session_id).result(),
        "RestClient.list_sessions": lambda: rest.list_sessions().result(),
        "RestClient.search_sessions": lambda: rest.search_sessions(
            types.SessionSearchRequest(session_id=session_id)
        ).result(),
        "RestClient.get_sampler": lambda: rest.get_sampler(sampler._sampling_session_id).result(),
        "RestClient.publish_checkpoint_from_tinker_path": lambda: rest.publish_checkpoint_from_tinker_path(
            state
        ).result(),
        "RestClient.unpublish_checkpoint_from_tinker_path": lambda: (
            rest.unpublish_checkpoint_from_tinker_path(state).result()
        ),
        "RestClient.assign_session_project": lambda: rest.assign_session_project(session_id, "p").result(),
        "RestClient.export_session_trace": lambda: rest.export_session_trace(session_id).result(),
        "RestClient.get_audit_log": lambda: rest.get_audit_log().result(),
        "RestClient.get_billing_usage": lambda: rest.get_billing_usage(
            "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
        ).result(),
        "RestClient.get_current_checkpoint_storage_usage": lambda: (
            rest.get_current_checkpoint_storage_usage().result()
        ),
    }


def public_methods() -> set[str]:
    """Without the async twins, which make the same requests, and telemetry, which is off."""
    found = set()
    for client in (tinker.ServiceClient, tinker.TrainingClient, SamplingClient, tinker.RestClient):
        for name, member in inspect.getmembers(client, callable):
            inherited = name.startswith("_") or name.endswith("_async") or name == "get_telemetry"
            if not inherited and member is not None:
                found.add(f"{client.__name__}.{name}")
    return found


@pytest.mark.filterwarnings("ignore:DEPRECATED")
def test_every_public_method_is_served_or_refused_on_purpose(walk: dict[str, Callable[[], Any]]) -> None:
    known = set(walk) | set(NO_REQUEST)
    assert public_methods() - known == set(), "new in the SDK: serve it or list it"
    assert known - public_methods() == set(), "gone from the SDK"
    for name, call in walk.items():
        if name in REFUSED:
            with pytest.raises(tinker.APIStatusError, match=REFUSED[name]):
                call()
        else:
            call()


def test_pages_of_runs_and_checkpoints_cover_everything_once(
    service: tinker.ServiceClient, engine: EngineHandle, model_dir: Path
) -> None:
    trainee = service.create_lora_training_client(str(model_dir), rank=2, user_metadata={"purpose": "pages"})
    paths = {trainee.save_state(f"page-{i}").result().path for i in range(5)}
    rest = tinker.RestClient(base_url=engine.base_url, api_key=engine.api_key)
    total = rest.list_user_checkpoints(limit=1).result().cursor
    assert total is not None
    seen = [
        checkpoint.tinker_path
        for offset in range(0, total.total_count, 2)
        for checkpoint in rest.list_user_checkpoints(limit=2, offset=offset).result().checkpoints
    ]
    assert len(seen) == len(set(seen))
    assert paths <= set(seen)
    assert rest.get_training_run(trainee.model_id).result().user_metadata == {"purpose": "pages"}


def test_a_checkpoint_can_be_given_a_lifetime_and_copied(
    service: tinker.ServiceClient, engine: EngineHandle, model_dir: Path
) -> None:
    trainee = service.create_lora_training_client(str(model_dir), rank=2)
    path = trainee.save_state("kept", ttl_seconds=3600).result().path
    rest = tinker.RestClient(base_url=engine.base_url, api_key=engine.api_key)

    def described(which: str) -> types.Checkpoint:
        run = which.split("/")[2]
        [found] = [c for c in rest.list_checkpoints(run).result().checkpoints if c.tinker_path == which]
        return found

    assert described(path).expires_at is not None
    rest.set_checkpoint_ttl_from_tinker_path(path, None).result()
    assert described(path).expires_at is None
    copy = rest.copy_weights(path, "anywhere").result()
    assert copy != path
    rest.delete_checkpoint_from_tinker_path(path).result()
    service.create_training_client_from_state_with_optimizer(copy)


def test_exported_weights_are_a_peft_adapter_that_anyone_with_the_address_can_fetch(
    service: tinker.ServiceClient, engine: EngineHandle, model_dir: Path
) -> None:
    trainee = service.create_lora_training_client(str(model_dir), rank=2, seed=3)
    trainee.forward_backward([datum(list(range(2, 12)))], "cross_entropy").result()
    trainee.optim_step(types.AdamParams(learning_rate=0.1)).result()
    path = trainee.save_weights_external("adapter").result().path
    rest = tinker.RestClient(base_url=engine.base_url, api_key=engine.api_key)
    urls = rest.get_external_weights_urls(path).result().urls
    assert set(urls) == {"adapter_config.json", "adapter_model.safetensors"}
    with urlopen(urls["adapter_model.safetensors"]) as answer:
        tensors = load_tensors(answer.read())
    a = tensors["base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"]
    b = tensors["base_model.model.lm_head.lora_B.weight"]
    assert (a.shape, b.shape) == ((2, 32), (97, 2))
    assert np.abs(b).max() > 0
    with pytest.raises(Exception, match="401"):
        urlopen(urls["adapter_model.safetensors"][:-4] + "0000")
    with pytest.raises(Exception, match="401"):
        urlopen(urls["adapter_model.safetensors"].replace("adapter/", "other/"))


def test_top_tokens_targets_and_draws_agree_with_each_other(
    service: tinker.ServiceClient, model_dir: Path
) -> None:
    sampler = service.create_sampling_client(base_model=str(model_dir))
    tokens = PROMPT.to_ints()
    targets = np.stack([tokens[1:], np.full(len(tokens) - 1, -1)], axis=1)
    answer = sampler.sample(
        PROMPT,
        1,
        PARAMS,
        include_prompt_logprobs=True,
        topk_prompt_logprobs=97,
        topk_sample_logprobs=97,
        target_prompt_logprobs=types.TensorData.from_numpy(targets),
        prompt_alt_tokens_k=3,
    ).result()
    assert answer.topk_prompt_logprobs is not None
    assert answer.topk_prompt_logprobs[0] is None
    tables = [dict(row or []) for row in answer.topk_prompt_logprobs]
    assert answer.prompt_logprobs is not None
    np.testing.assert_allclose(
        [tables[i][tokens[i]] for i in range(1, len(tokens))], answer.prompt_logprobs[1:], atol=1e-4
    )
    assert answer.target_prompt_logprobs is not None
    scored = answer.target_prompt_logprobs.to_numpy().reshape(targets.shape)
    np.testing.assert_allclose(scored[:, 0], answer.prompt_logprobs[1:], atol=1e-4)
    assert not scored[:, 1].any()
    assert answer.prompt_alt_tokens is not None
    drawn = answer.prompt_alt_tokens.tokens.to_numpy().reshape(-1, 3)
    chances = answer.prompt_alt_tokens.logprobs.to_numpy().reshape(-1, 3)
    np.testing.assert_allclose(chances[4, 1], tables[5][int(drawn[4, 1])], atol=1e-4)
    [sequence] = answer.sequences
    assert sequence.topk_logprobs is not None
    picked = [
        dict(row or [])[token] for row, token in zip(sequence.topk_logprobs, sequence.tokens, strict=True)
    ]
    np.testing.assert_allclose(picked, sequence.logprobs, atol=1e-4)


def test_every_weight_can_be_trained_and_fetched_as_a_model(
    service: tinker.ServiceClient, engine: EngineHandle, model_dir: Path
) -> None:
    trainee = service.create_lora_training_client(str(model_dir), rank=0)
    assert not trainee.get_info().is_lora
    data = [datum(list(range(2, 20)))]
    before = trainee.forward_backward(data, "cross_entropy").result().metrics["loss:sum"]
    trainee.optim_step(types.AdamParams(learning_rate=1e-3)).result()
    assert trainee.forward(data, "cross_entropy").result().metrics["loss:sum"] < before
    path = trainee.save_weights_external("whole").result().path
    rest = tinker.RestClient(base_url=engine.base_url, api_key=engine.api_key)
    urls = rest.get_external_weights_urls(path).result().urls
    with urlopen(urls["model.safetensors"]) as answer:
        assert "model.layers.0.mlp.down_proj.weight" in load_tensors(answer.read())


def test_recorded_samples_can_be_trained_on_by_their_ids(
    service: tinker.ServiceClient, model_dir: Path
) -> None:
    trainee = service.create_lora_training_client(str(model_dir), rank=2, seed=0)
    sampler = trainee.save_weights_and_get_sampling_client(record_stability_info=True)
    [sequence] = sampler.sample(PROMPT, 1, PARAMS).result().sequences
    whole = PROMPT.to_ints() + sequence.tokens
    rest = len(PROMPT.to_ints()) - 1
    zeros, ones = [0.0] * rest, [1.0] * len(sequence.tokens)
    plain = types.Datum(
        model_input=types.ModelInput.from_ints(whole[:-1]),
        loss_fn_inputs={"target_tokens": whole[1:], "advantages": zeros + ones},
    )
    spans = [
        types.PromptProvenanceSpan(sequence_id=sequence.sequence_id, offset=0, length=rest),
        types.SampledProvenanceSpan(sequence_id=sequence.sequence_id, length=len(sequence.tokens)),
    ]
    named = plain.with_provenance(
        model_input=[types.PromptProvenanceSpan(sequence_id=sequence.sequence_id, length=len(whole) - 1)],
        loss_fn_inputs=spans,
    )
    given = types.Datum(
        model_input=plain.model_input,
        loss_fn_inputs=dict(plain.loss_fn_inputs) | {"logprobs": zeros + list(sequence.logprobs or [])},
    )
    by_name = trainee.forward([named], "stable_reinforce").result().metrics["loss:sum"]
    assert by_name == trainee.forward([given], "stable_reinforce").result().metrics["loss:sum"]
    with pytest.raises(tinker.RequestFailedError, match="needs 'logprobs'"):
        trainee.forward([plain], "stable_reinforce").result()
