"""The real SDK against a real engine process."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinker
from tinker import types

from termrl.engine.process import EngineHandle

PROMPT = np.random.default_rng(0).integers(2, 97, 70).tolist()


def text_datum(tokens: Sequence[int], weight: float = 1.0) -> types.Datum:
    size = len(tokens) - 1
    return types.Datum(
        model_input=types.ModelInput.from_ints(list(tokens[:-1])),
        loss_fn_inputs={
            "target_tokens": types.TensorData(data=list(tokens[1:]), dtype="int64"),
            "weights": types.TensorData(data=[weight] * size, dtype="float32"),
        },
    )


def train(client: tinker.TrainingClient, data: list[types.Datum], rate: float = 5e-3) -> float:
    """One step; the next request is sent before the last is answered, as users do."""
    passed = client.forward_backward(data, "cross_entropy")
    client.optim_step(types.AdamParams(learning_rate=rate)).result()
    return float(passed.result().metrics["loss:sum"])


def sample(
    client: tinker.SamplingClient, prompt: list[int] = PROMPT, **settings: Any
) -> types.SampledSequence:
    params = types.SamplingParams(**({"max_tokens": 20, "seed": 5} | settings))
    return client.sample(types.ModelInput.from_ints(prompt), 1, params).result().sequences[0]


def post(handle: EngineHandle, path: str, body: bytes, key: str | None = None) -> tuple[int, Any]:
    request = urllib.request.Request(
        f"{handle.base_url}/api/v1/{path}", body, {"X-API-Key": handle.api_key if key is None else key}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.fixture
def trainee(service: tinker.ServiceClient, model_dir: Path) -> tinker.TrainingClient:
    return service.create_lora_training_client(str(model_dir), rank=4, seed=1)


def test_supervised_training_lowers_the_loss_and_the_model_says_what_it_learned(
    trainee: tinker.TrainingClient,
) -> None:
    lesson = [3, 14, 15, 92, 65, 35, 89, 79]
    losses = [train(trainee, [text_datum(lesson)], rate=4e-3) for _ in range(40)]
    assert losses[-1] < 0.1 * losses[0]
    sampler = trainee.save_weights_and_get_sampling_client()
    assert sample(sampler, lesson[:1], max_tokens=7, temperature=0.0).tokens == lesson[1:]


def test_sampled_logprobs_forward_and_compute_logprobs_agree(trainee: tinker.TrainingClient) -> None:
    train(trainee, [text_datum(PROMPT)])
    sampler = trainee.save_weights_and_get_sampling_client()
    answer = sample(sampler)
    whole = PROMPT + answer.tokens
    computed = sampler.compute_logprobs(types.ModelInput.from_ints(whole)).result()
    forward = trainee.forward([text_datum(whole)], "cross_entropy").result().loss_fn_outputs[0]["logprobs"]
    assert computed[0] is None
    assert len(computed) == len(whole)
    np.testing.assert_allclose(answer.logprobs, computed[-len(answer.tokens) :], atol=1e-4)
    np.testing.assert_allclose(forward.data, computed[1:], atol=1e-4)


def test_a_sampler_keeps_its_weights_while_training_goes_on(
    service: tinker.ServiceClient, trainee: tinker.TrainingClient
) -> None:
    unnamed = trainee.save_weights_and_get_sampling_client()
    path = trainee.save_weights_for_sampler("before").result().path
    before = sample(unnamed)
    for _ in range(3):
        train(trainee, [text_datum(PROMPT)], rate=0.05)
    after = sample(trainee.save_weights_and_get_sampling_client())
    assert sample(unnamed).tokens == before.tokens
    assert sample(unnamed).logprobs == before.logprobs
    assert sample(service.create_sampling_client(model_path=path)).logprobs == before.logprobs
    assert after.logprobs != before.logprobs


def test_policy_gradient_raises_what_is_rewarded(trainee: tinker.TrainingClient) -> None:
    sampler = trainee.save_weights_and_get_sampling_client()
    answers = [sample(sampler, seed=seed, stop=[]) for seed in range(2)]

    def datum(answer: types.SampledSequence, advantage: float) -> types.Datum:
        whole = PROMPT + answer.tokens
        rest = len(PROMPT) - 1
        return types.Datum(
            model_input=types.ModelInput.from_ints(whole[:-1]),
            loss_fn_inputs={
                "target_tokens": types.TensorData(data=whole[1:], dtype="int64"),
                "logprobs": types.TensorData(
                    data=[0.0] * rest + list(answer.logprobs or []), dtype="float32"
                ),
                "advantages": types.TensorData(data=[0.0] * rest + [advantage] * 20, dtype="float32"),
            },
        )

    data = [datum(answers[0], 1.0), datum(answers[1], -1.0)]
    before = trainee.forward(data, "importance_sampling").result()
    assert before.metrics["loss:sum"] == pytest.approx(0.0, abs=1e-2)
    for config in (None, {"clip_low_threshold": 0.5, "clip_high_threshold": 2.0}):
        trainee.forward_backward(data, "ppo", config).result()
        trainee.optim_step(types.AdamParams(learning_rate=1e-3, grad_clip_norm=1.0)).result()
    after = trainee.forward(data, "importance_sampling").result()
    gains = [
        sum(new["logprobs"].data[-20:]) - sum(old["logprobs"].data[-20:])
        for new, old in zip(after.loss_fn_outputs, before.loss_fn_outputs, strict=True)
    ]
    assert gains[0] > 0 > gains[1]


def test_a_loss_differentiated_in_the_client_trains_like_the_engines_own(
    service: tinker.ServiceClient, model_dir: Path
) -> None:
    """The way of the SDK's forward_backward_custom, which needs torch; see scripts/check_custom_loss.py."""
    rows = [np.random.default_rng(size).integers(2, 97, size + 1) for size in (40, 64, 9)]
    rates = [np.linspace(-1, 1, len(row) - 1, dtype=np.float32) for row in rows]

    def data(**columns: list[np.ndarray]) -> list[types.Datum]:
        return [
            types.Datum(
                model_input=types.ModelInput.from_ints(row[:-1].tolist()),
                loss_fn_inputs={"target_tokens": row[1:]} | {key: value[i] for key, value in columns.items()},
            )
            for i, row in enumerate(rows)
        ]

    theirs, ours = (
        service.create_lora_training_client(str(model_dir), rank=4, seed=1, train_unembed=True)
        for _ in range(2)
    )
    sampled = [np.full(len(rate), -4.5, np.float32) for rate in rates]
    forward = theirs.forward(data(weights=[rate * 0 for rate in rates]), "cross_entropy").result()
    logprobs = [np.asarray(out["logprobs"].data) for out in forward.loss_fn_outputs]
    slopes = [np.exp(new - old) * rate for new, old, rate in zip(logprobs, sampled, rates, strict=True)]
    theirs.forward_backward(data(weights=slopes), "cross_entropy").result()
    ours.forward_backward(data(logprobs=sampled, advantages=rates), "importance_sampling").result()
    for trainee in (theirs, ours):
        trainee.optim_step(types.AdamParams(learning_rate=1e-3)).result()
    probe = data(weights=[rate * 0 for rate in rates])
    found = [trainee.forward(probe, "cross_entropy").result() for trainee in (theirs, ours)]
    for one, other, old in zip(*(result.loss_fn_outputs for result in found), logprobs, strict=True):
        np.testing.assert_allclose(one["logprobs"].data, other["logprobs"].data, atol=1e-5)
        assert np.abs(np.asarray(one["logprobs"].data) - old).max() > 1e-3


def test_gradients_accumulate_until_the_step(
    service: tinker.ServiceClient, model_dir: Path, trainee: tinker.TrainingClient
) -> None:
    data = [text_datum(PROMPT), text_datum(PROMPT[:30])]
    trainee.forward_backward(data, "cross_entropy").result()
    whole = trainee.optim_step(types.AdamParams()).result().metrics
    twin = service.create_lora_training_client(str(model_dir), rank=4, seed=1)
    for datum in data:
        twin.forward_backward([datum], "cross_entropy").result()
    parts = twin.optim_step(types.AdamParams()).result().metrics
    assert whole["unclipped_grad_l2:mean"] == pytest.approx(parts["unclipped_grad_l2:mean"], rel=1e-4)


def test_info_tokenizer_and_lists_describe_what_is_there(
    service: tinker.ServiceClient, engine: EngineHandle, model_dir: Path, trainee: tinker.TrainingClient
) -> None:
    info = trainee.get_info()
    assert (info.model_data.model_name, info.is_lora, info.lora_rank) == (str(model_dir), True, 4)
    assert trainee.get_tokenizer().decode([5]) == "w5 "
    [model] = service.get_server_capabilities().supported_models
    assert (model.model_name, model.max_context_length, model.trainable) == (str(model_dir), 320, True)
    sampler = trainee.save_weights_and_get_sampling_client()
    assert sampler.get_tokenizer().decode([5]) == "w5 "
    path = trainee.save_state("listed", user_metadata={"step": "1"}).result().path
    rest = tinker.RestClient(base_url=engine.base_url, api_key=engine.api_key)
    [found] = rest.list_checkpoints(trainee.model_id).result().checkpoints
    assert (found.tinker_path, found.checkpoint_type, found.user_metadata) == (
        path,
        "training",
        {"step": "1"},
    )
    assert rest.get_training_run(trainee.model_id).result().lora_rank == 4
    assert trainee.model_id in {
        run.training_run_id for run in rest.list_training_runs().result().training_runs
    }
    rest.delete_checkpoint_from_tinker_path(path).result()
    assert rest.list_checkpoints(trainee.model_id).result().checkpoints == []


def test_several_samples_of_a_prompt_differ_and_can_be_had_again(
    service: tinker.ServiceClient, model_dir: Path
) -> None:
    sampler = service.create_sampling_client(base_model=str(model_dir))
    params = types.SamplingParams(max_tokens=12, seed=3, stop=[])

    def draw() -> list[list[int]]:
        answer = sampler.sample(types.ModelInput.from_ints(PROMPT), 3, params).result()
        return [list(sequence.tokens) for sequence in answer.sequences]

    first = draw()
    assert len({tuple(tokens) for tokens in first}) == 3
    assert draw() == first


def test_an_answer_stops_where_it_is_told_and_where_the_context_ends(
    service: tinker.ServiceClient, model_dir: Path
) -> None:
    sampler = service.create_sampling_client(base_model=str(model_dir))
    free = sample(sampler, stop=[])
    stopped = sample(sampler, stop=[free.tokens[4]])
    assert stopped.stop_reason == "stop"
    assert stopped.tokens == free.tokens[: free.tokens.index(free.tokens[4]) + 1]
    by_text = sample(sampler, stop=f"w{free.tokens[6]} ")
    assert by_text.stop_reason == "stop"
    assert by_text.tokens == free.tokens[: free.tokens.index(free.tokens[6]) + 1]
    clamped = sample(sampler, (PROMPT * 5)[:315], max_tokens=500, stop=[])
    assert (clamped.stop_reason, len(clamped.tokens)) == ("length", 5)
    with pytest.raises(tinker.RequestFailedError, match="context of 320"):
        sample(sampler, (PROMPT * 5)[:320])


@pytest.mark.parametrize(
    ("loss", "config", "said"),
    [
        ("custom", {"loss_id": "x"}, "forward_backward_custom"),
        ("ppo", None, "needs 'logprobs'"),
        ("cross_entropy", {"beta": 1.0}, "no setting 'beta'"),
    ],
)
def test_what_cannot_be_trained_fails_as_the_users_error(
    trainee: tinker.TrainingClient, loss: Any, config: dict[str, float] | None, said: str
) -> None:
    with pytest.raises(tinker.RequestFailedError, match=said) as failure:
        trainee.forward_backward([text_datum(PROMPT)], loss, config).result()
    assert failure.value.category == types.RequestErrorCategory.User
    with pytest.raises(tinker.RequestFailedError, match="no gradients"):
        trainee.optim_step(types.AdamParams()).result()


def test_what_cannot_be_sampled_fails_as_the_users_error(
    service: tinker.ServiceClient, model_dir: Path
) -> None:
    sampler = service.create_sampling_client(base_model=str(model_dir))
    prompt, params = types.ModelInput.from_ints(PROMPT), types.SamplingParams(max_tokens=1)
    with pytest.raises(tinker.RequestFailedError, match="topk_sample_logprobs must be") as failure:
        sampler.sample(prompt, 1, params, topk_sample_logprobs=999).result()
    assert failure.value.category == types.RequestErrorCategory.User
    with pytest.raises(tinker.RequestFailedError, match="vocabulary"):
        sample(sampler, [5, 97])
    with pytest.raises(tinker.RequestFailedError, match="empty"):
        sample(sampler, [])


def test_models_and_checkpoints_that_are_not_there_are_named(
    service: tinker.ServiceClient, tmp_path: Path
) -> None:
    with pytest.raises(tinker.RequestFailedError, match="no model 'nosuch'") as failure:
        service.create_lora_training_client("nosuch", rank=4)
    assert failure.value.category == types.RequestErrorCategory.User
    with pytest.raises(tinker.BadRequestError, match=r"incomplete: it has no config\.json"):
        service.create_sampling_client(base_model=str(tmp_path))
    with pytest.raises(tinker.RequestFailedError, match="no checkpoint tinker://a/weights/b"):
        service.create_training_client_from_state("tinker://a/weights/b")


def test_a_wrong_key_is_refused(engine: EngineHandle) -> None:
    assert post(engine, "create_session", b"{}", key="tml-wrong")[0] == 401
    assert post(engine, "create_session", b"{}", key="")[0] == 401
    with pytest.raises(tinker.AuthenticationError):
        tinker.ServiceClient(base_url=engine.base_url, api_key="tml-wrong").get_server_capabilities()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("forward_backward", b"\xff\xff\xff not protobuf"),
        ("forward_backward", b""),
        ("asample", b"{not json"),
        ("asample", b"[]"),
        ("asample", b'{"sampling_session_id": 5}'),
        ("asample", b'{"sampling_session_id": "x", "seq_id": 1, "num_samples": 0}'),
        ("asample", b'{"sampling_session_id": "x", "seq_id": 2, "num_samples": 1, "prompt": {"chunks": 5}}'),
        ("optim_step", b'{"adam_params": {}}'),
        ("retrieve_future", b'{"request_id": "nobody"}'),
        ("get_info", b'{"model_id": "nobody"}'),
        ("no_such_call", b"{}"),
        ("weights_info", b'{"tinker_path": "tinker://../../etc/passwd"}'),
        ("create_sampling_session", b'{"session_id": "nobody", "sampling_session_seq_id": 1}'),
        ("create_session", bytes(range(256))),
    ],
)
def test_a_body_that_makes_no_sense_gets_a_4xx_and_the_engine_lives(
    engine: EngineHandle, path: str, body: bytes
) -> None:
    status, answer = post(engine, path, body)
    assert 400 <= status < 500
    assert len(answer["error"]) > 10
    assert post(engine, "create_session", b"{}")[0] == 200


def test_a_repeated_submission_is_answered_but_not_done_twice(
    engine: EngineHandle, trainee: tinker.TrainingClient
) -> None:
    trainee.forward_backward([text_datum(PROMPT)], "cross_entropy").result()
    body = json.dumps({"model_id": trainee.model_id, "seq_id": 77, "adam_params": {}}).encode()
    first, again = (post(engine, "optim_step", body)[1]["request_id"] for _ in range(2))
    assert first == again
    results = [post(engine, "retrieve_future", json.dumps({"request_id": first}).encode()) for _ in range(2)]
    assert results[0] == results[1]
    assert results[0][1]["metrics"]["unclipped_grad_l2:mean"] > 0


def test_training_resumed_in_a_new_engine_gives_the_same_bits(
    restartable: Callable[[], Any], model_dir: Path
) -> None:
    def lesson(step: int) -> list[types.Datum]:
        rng = np.random.default_rng(step)
        return [text_datum(rng.integers(2, 97, rng.integers(5, 120)).tolist()) for _ in range(6)]

    with restartable() as (service, state):
        unbroken = service.create_lora_training_client(str(model_dir), rank=4, seed=9)
        broken = service.create_lora_training_client(str(model_dir), rank=4, seed=9)
        for step in range(2):
            train(unbroken, lesson(step))
            train(broken, lesson(step))
        for step in range(2, 4):
            train(unbroken, lesson(step))
        middle = broken.save_state("middle").result().path
        expected = unbroken.save_state("end").result().path
        sampler_path = broken.save_weights_for_sampler("middle").result().path
        sampled = sample(service.create_sampling_client(model_path=sampler_path))
    with restartable() as (service, state):
        resumed = service.create_training_client_from_state_with_optimizer(middle)
        for step in range(2, 4):
            train(resumed, lesson(step))
        found = resumed.save_state("end").result().path
        assert tensors(state, found) == tensors(state, expected)
        assert tensors(state, found) != tensors(state, middle)
        fresh = service.create_training_client_from_state(middle)
        train(fresh, lesson(2))
        assert tensors(state, fresh.save_state("x").result().path) != tensors(state, expected)
        resampled = sample(service.create_sampling_client(model_path=sampler_path))
        assert (resampled.tokens, resampled.logprobs) == (sampled.tokens, sampled.logprobs)


def tensors(state: Path, path: str) -> dict[str, bytes]:
    from safetensors.numpy import load_file

    file = state / "checkpoints" / f"{path.removeprefix('tinker://')}.safetensors"
    return {name: value.tobytes() for name, value in load_file(file).items()}


def test_a_sampler_never_changes_its_weights_unsaid(
    service: tinker.ServiceClient, trainee: tinker.TrainingClient
) -> None:
    path = trainee.save_state("changing").result().path
    early = service.create_sampling_client(model_path=path)
    before = sample(early)
    late = service.create_sampling_client(model_path=path)
    train(trainee, [text_datum(PROMPT)], rate=0.05)
    trainee.save_state("changing", overwrite=True).result()
    assert sample(early).logprobs == before.logprobs
    assert sample(late).logprobs == before.logprobs
    for _ in range(5):
        sample(trainee.save_weights_and_get_sampling_client(), max_tokens=1)
        train(trainee, [text_datum(PROMPT)])
    with pytest.raises(tinker.RequestFailedError, match="was overwritten"):
        sample(late)
    assert sample(service.create_sampling_client(model_path=path)).logprobs != before.logprobs
