"""Messages of docs/troubleshooting.md: what the engine answers to a client, over HTTP."""

from typing import Any

from producers import Place, Producer, says
from producers.talking import Client
from termrl.engine.architecture import LlamaConfig
from termrl.engine.checkpoints import CheckpointPath, CheckpointStore
from termrl.engine.llama import init_params
from termrl.engine.weights import save_model


def prompt(*chunks: object) -> dict[str, Any]:
    return {"prompt": {"chunks": list(chunks)}}


def tokens(*ids: int) -> dict[str, Any]:
    return prompt({"type": "encoded_text", "tokens": list(ids)})


def params(**settings: object) -> dict[str, Any]:
    return {"sampling_params": settings}


def targets(*data: int, shape: tuple[int, ...] = (1, 1), **sparse: object) -> dict[str, Any]:
    return {"target_prompt_logprobs": {"shape": list(shape), "data": list(data), **sparse}}


SAMPLES: dict[str, dict[str, Any]] = {
    "max_tokens must be at least 1, not ….": params(max_tokens=0),
    "temperature must be 0 or more, not ….": params(temperature=-1),
    "top_p must be above 0 and at most 1, not ….": params(top_p=0),
    "This engine takes at most … stop ids, not ….": params(stop=list(range(99))),
    "The field 'stop' must be a string, a list of strings or a list of ids.": params(stop=5),
    "The field 'stop' must hold token ids or strings that are not empty.": params(stop=[""]),
    "… must be between 0 and …, not ….": {"topk_prompt_logprobs": 9999},
    "num_samples must be between 1 and …, not ….": {"num_samples": 0},
    "prompt_logprobs_last_n must be between 1 and the prompt's length - 1.": {"prompt_logprobs_last_n": 9},
    "This engine samples from sampling sessions; leave out ….": {"base_model": "termrl/tiny"},
    "target_prompt_logprobs must have shape [… K] with K at most …, not ….": targets(1, shape=(1,)),
    "target_prompt_logprobs must hold token ids, or -1 for none.": targets(-2),
    "target_prompt_logprobs has … values for the shape ….": targets(1, shape=(1, 2)),
    "target_prompt_logprobs is a sparse tensor whose rows do not fit its shape.": targets(
        1, sparse_crow_indices=[0], sparse_col_indices=[0]
    ),
    "target_prompt_logprobs has ids outside the vocabulary of ….": targets(10**6),
    "A prompt needs a list of chunks.": {"prompt": {}},
    "A prompt's chunk must be an object.": prompt(1),
    "A prompt holds images or audio; this engine reads text tokens only.": prompt({"type": "image"}),
    "A text chunk needs a list of token ids.": prompt({"type": "encoded_text"}),
    "A prompt has token ids outside the vocabulary.": tokens(-1),
    "The prompt is empty; it needs at least one token.": prompt(),
    "The prompt has token ids outside the vocabulary of ….": tokens(10**6),
    "The prompt has … tokens; … has a context of ….": tokens(*[1] * 10**5),
    "What is asked about the prompt needs a prompt of two tokens or more.": {
        **tokens(1),
        "topk_prompt_logprobs": 1,
    },
    "There is no sampling session …; the engine keeps the last … unnamed ones. "
    "Save named weights to keep them.": {"sampling_session_id": "a:sample:0"},
    "The field … is missing.": {"sampling_session_id": None},
    "The field … must be an integer.": {"seq_id": None},
    "The field … has the wrong type.": {"sampling_params": 1},
    "The field … must be a list of integers.": {"target_prompt_logprobs": {"shape": ["a"]}},
}


def _sampling(changes: dict[str, Any]) -> Producer:
    def ask(place: Place) -> str:
        client = Client(place)
        return client.sample(client.sampler(), changes)

    return ask


for message, changes in SAMPLES.items():
    says(message)(_sampling(changes))


@says("A sampling session needs a base_model or a model_path.")
def _(place: Place) -> str:
    client = Client(place)
    return client.refusal(
        "create_sampling_session", {"session_id": client.session, "sampling_session_seq_id": 0}
    )


@says("… was overwritten; create a new sampling client from it.")
def _(place: Place) -> str:
    client = Client(place)
    model = client.model()
    sampler = client.sampler(client.saved(model))
    client.saved(model, overwrite=True)
    return client.sample(sampler, {})


MODELS: dict[str, dict[str, Any]] = {
    "This engine has the optimizer 'adamw', not ….": {"optimizer_config": {"type": "sgd"}},
    "A training client must train at least one of attention, MLP and unembedding.": {
        "lora_config": {"rank": 1, "train_attn": False, "train_mlp": False, "train_unembed": False}
    },
    "The user metadata lora_alpha must be a number above 0, not ….": {"user_metadata": {"lora_alpha": "x"}},
    "The LoRA rank must be between 1 and …, or 0 to train every weight, not ….": {
        "lora_config": {"rank": 10**6}
    },
    "There is no session …; create one first.": {"session_id": "a"},
}
STEPS: dict[str, dict[str, Any]] = {
    "This engine steps with AdamParams only.": {"optimizer_params": {}},
    "The field 'adam_params' is missing.": {"adam_params": None},
    "Every Adam setting must be finite and not negative, not ….": {"adam_params": {"learning_rate": -1}},
    "Adam's betas must be below 1, not … and ….": {"adam_params": {"beta1": 1}},
    "There is no training client …; after an engine restart, create one from a state.": {
        "model_id": "a:train:0"
    },
    "optim_step has no gradients: no forward_backward has succeeded since the last step.": {},
}
SAVES: dict[str, tuple[str, dict[str, Any]]] = {
    "ttl_seconds must be between 1 and ten years, not ….": ("save_weights", {"ttl_seconds": 0}),
    "… cannot name a checkpoint; use letters, digits, '.', '_', '-' and ':'.": (
        "save_weights",
        {"path": "a b"},
    ),
    "This engine does not encrypt exported weights; leave out age_encryption_recipients.": (
        "save_weights_external",
        {"age_encryption_recipients": ["age1"]},
    ),
    "… is not a checkpoint path like tinker://RUN/weights/NAME.": ("load_weights", {"path": "a"}),
    "A checkpoint is of kind …, not ….": ("load_weights", {"path": "tinker://a/b/c"}),
    "There is no checkpoint ….": ("load_weights", {"path": "tinker://a/weights/b"}),
    "This engine has one key and no access tokens.": ("load_weights", {"weights_access_token": "a"}),
}


def _making(changes: dict[str, Any]) -> Producer:
    def ask(place: Place) -> str:
        client = Client(place)
        body = {"session_id": client.session, "model_seq_id": 0, "base_model": "termrl/tiny"}
        return client.refusal("create_model", {**body, **changes})

    return ask


def _with_a_model(call: str, changes: dict[str, Any]) -> Producer:
    def ask(place: Place) -> str:
        client = Client(place)
        return client.refusal(call, {"model_id": client.model(), "path": "a", "adam_params": {}, **changes})

    return ask


for message, changes in MODELS.items():
    says(message)(_making(changes))
for message, changes in STEPS.items():
    says(message)(_with_a_model("optim_step", changes))
for message, (call, changes) in SAVES.items():
    says(message)(_with_a_model(call, changes))


@says("… exists already; choose another name or save with overwrite.")
def _(place: Place) -> str:
    client = Client(place)
    model = client.model()
    client.saved(model)
    return client.refusal("save_weights_for_sampler", {"model_id": model, "path": "a"})


@says("… is damaged on disk: ….")
def _(place: Place) -> None:
    place.file("a/weights/b.safetensors", "no")
    CheckpointStore(place.path).info(CheckpointPath("a", "weights", "b"))


@says("… has …, the training client ….")
def _(place: Place) -> str:
    client = Client(place)
    return client.refusal(
        "load_weights", {"model_id": client.model(rank=2), "path": client.saved(client.model())}
    )


@says("… holds no optimizer state; load it without, or save with save_state.")
def _(place: Place) -> str:
    client = Client(place)
    model = client.model()
    return client.refusal("load_weights", {"model_id": model, "path": client.saved(model), "optimizer": True})


@says("… was trained on …, which has another shape.")
def _(place: Place) -> str:
    config = LlamaConfig(
        vocab_size=16,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
    save_model(place.path / "other", config, init_params(config, 0))
    place.file("other/tokenizer.json", TOKENIZER)
    client = Client(place)
    other = client.model(base_model=str(place.path / "other"))
    return client.refusal("load_weights", {"model_id": other, "path": client.saved(client.model())})


TOKENIZER = '{"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}'
LISTINGS: dict[str, tuple[str, str, Any]] = {
    "There is no training run ….": ("GET", "training_runs/a", None),
    "offset and limit must be integers.": ("GET", "training_runs?limit=x", None),
    "offset and limit must not be negative.": ("GET", "training_runs?limit=-1", None),
    "limit must be between 1 and 200, not ….": ("POST", "sessions/search", {"limit": 0}),
    "'…' is not a date and time.": (
        "POST",
        "sessions/search",
        {"cursor": {"last_created_at": "x", "last_session_id": "a"}},
    ),
    "The field 'statuses' must be a list.": ("POST", "sessions/search", {"statuses": 1}),
    "There is no session ….": ("POST", "session_heartbeat", {"session_id": "a"}),
    "There is no request …, or it was fetched long ago.": ("POST", "retrieve_future", {"request_id": "a"}),
    "This engine does not have … …: ….": ("POST", "nothing", {}),
    "The body is not JSON: ….": ("POST", "create_session", b"{"),
    "The body must be a JSON object.": ("POST", "create_session", []),
    "This engine publishes no checkpoints: it has one user.": (
        "POST",
        "training_runs/a/checkpoints/weights/b/publish",
        None,
    ),
    "This engine has no projects.": ("PUT", "sessions/a/project", None),
    "This engine records no traces.": ("GET", "sessions/a/trace_export", None),
    "This engine keeps no audit log.": ("GET", "audit", None),
    "This engine sends no bills.": ("GET", "billing/usage/events", None),
    "This engine runs custom losses in the client.": ("POST", "create_custom_loss", {}),
}


def _listing(method: str, call: str, body: Any) -> Producer:
    return lambda place: Client(place).refusal(call, body, method=method)


for message, (method, call, body) in LISTINGS.items():
    says(message)(_listing(method, call, body))


@says("… has no file ….")
def _(place: Place) -> str:
    client = Client(place)
    path = client.saved(client.model()).removeprefix("tinker://")
    return client.refusal(f"downloads/{path}/nothing", method="GET")


@says("The X-API-Key header does not hold this engine's key.")
def _(place: Place) -> str:
    return Client(place, key="tml-wrong").refusal("create_session", {})
