"""Messages of docs/troubleshooting.md: what the engine answers to data that it cannot train on."""

from collections.abc import Callable
from typing import Any

import numpy as np

from producers import Place, Producer, says
from producers.talking import Client
from termrl.engine.schema import pb

type Change = Callable[[Any], None]
"""What is made wrong of a good request."""


def request(model: str) -> Any:
    """One datum of two tokens, for ppo."""
    asked = pb.ForwardBackwardRequest(model_id=model, loss_fn="ppo")
    datum = asked.data.add()
    datum.model_input.add().encoded_text.tokens = np.array([1, 2], np.int32).tobytes()
    put(datum, "target_tokens", np.array([2, 3], np.int64))
    for name in ("logprobs", "advantages"):
        put(datum, name, np.array([-0.5, -0.5], np.float32))
    return asked


def put(datum: Any, name: str, values: np.ndarray, shape: tuple[int, ...] | None = None) -> None:
    tensor = datum.loss_fn_inputs[name]
    tensor.dtype = pb.DTYPE_INT64 if values.dtype == np.int64 else pb.DTYPE_FLOAT32
    tensor.dense = values.tobytes()
    del tensor.shape[:]
    tensor.shape.extend(values.shape if shape is None else shape)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def sparse(datum: Any, ends: list[int], columns: list[int]) -> None:
    tensor = datum.loss_fn_inputs["target_tokens"]
    del tensor.shape[:]
    tensor.shape.extend([2, 1])
    tensor.sparse_csr.crow_indices = np.array(ends, np.int64).tobytes()
    tensor.sparse_csr.col_indices = np.array(columns, np.int64).tobytes()
    tensor.sparse_csr.values = np.array([1] * len(columns), np.int64).tobytes()


def without_type(datum: Any) -> None:
    datum.loss_fn_inputs["logprobs"].dtype = 0


def torn(datum: Any) -> None:
    datum.loss_fn_inputs["logprobs"].dense = b"abc"


def by_reference(datum: Any, length: int) -> None:
    del datum.loss_fn_inputs["logprobs"]
    span = datum.loss_fn_input_spans.add().sampled_tokens
    span.sequence_id, span.length = "a:0", length


def longer(datum: Any, length: int) -> None:
    datum.model_input[0].encoded_text.tokens = np.ones(length, np.int32).tobytes()
    put(datum, "target_tokens", np.ones(length, np.int64))
    for name in ("logprobs", "advantages"):
        put(datum, name, np.zeros(length, np.float32))


DATUMS: dict[str, Change] = {
    "A datum holds images or audio; this engine trains on text tokens only.": lambda datum: (
        datum.model_input.add()
    ),
    "'target_tokens' must have one value for each of the … input tokens, not shape …; "
    "cross_entropy may have up to ….": (lambda datum: put(datum, "target_tokens", np.array([1], np.int64))),
    "… must have one value for each of the target tokens, shape …, not ….": lambda datum: put(
        datum, "advantages", floats(1)
    ),
    "A datum's loss_fn_input_spans cover … tokens of ….": lambda datum: by_reference(datum, 1),
    "There is no recording of … tokens from … on in the sequence …; "
    "sample with record_stability_info, or give 'logprobs'.": (lambda datum: by_reference(datum, 2)),
    "The loss … needs … in every datum's loss_fn_inputs.": lambda datum: datum.loss_fn_inputs.pop("logprobs"),
    "… must be a float32 or int64 tensor.": without_type,
    "… has … values, but its shape says ….": lambda datum: put(datum, "logprobs", floats(1, 2), (3,)),
    "… is a sparse tensor whose rows do not fit its shape ….": lambda datum: sparse(datum, [0, 1], [0]),
    "… is a sparse tensor with columns outside its shape ….": lambda datum: sparse(datum, [0, 1, 2], [0, 5]),
    "A tensor's … bytes are no whole number of … values.": torn,
    "A datum has … tokens; … takes 1 to ….": lambda datum: longer(datum, 10**5),
    "A datum has token ids outside the vocabulary of ….": lambda datum: put(
        datum, "target_tokens", np.array([1, 10**6], np.int64)
    ),
    "A datum has weights, advantages or logprobs that are not finite.": lambda datum: put(
        datum, "advantages", floats(1, float("inf"))
    ),
    "A datum has clip thresholds that are not numbers.": lambda datum: put(
        datum, "clip_low_threshold", floats(1, float("nan"))
    ),
}
LOSSES: dict[str, tuple[str, dict[str, float | str]]] = {
    "This engine runs custom losses in the client: call forward_backward_custom with a function.": (
        "custom",
        {},
    ),
    "This engine has no loss …; it has ….": ("mine", {}),
    "The loss … has no setting …; ….": ("ppo", {"beta": 1.0}),
    "The setting … of the loss … must be a number, not ….": ("dro", {"beta": "x"}),
    "The setting … of the loss … must be 0 or more, not ….": ("dro", {"beta": -1.0}),
    "The clip range of the loss … must have 0 <= low <= high, not …, ….": (
        "ppo",
        {"clip_low_threshold": 9.0},
    ),
}


def _datum(change: Change) -> Producer:
    def ask(place: Place) -> str:
        client = Client(place)
        asked = request(client.model())
        change(asked.data[0])
        return client.refusal("forward_backward", asked.SerializeToString())

    return ask


def _loss(name: str, settings: dict[str, float | str]) -> Producer:
    def ask(place: Place) -> str:
        client = Client(place)
        asked = request(client.model())
        asked.loss_fn = name
        for key, value in settings.items():
            setattr(asked.loss_fn_config_v2[key], "text" if isinstance(value, str) else "number", value)
        return client.refusal("forward_backward", asked.SerializeToString())

    return ask


for message, change in DATUMS.items():
    says(message)(_datum(change))
for message, (name, settings) in LOSSES.items():
    says(message)(_loss(name, settings))


@says("optim_step refused a gradient that is not finite; the weights are unchanged. …")
def _(place: Place) -> str:
    client = Client(place)
    model = client.model()
    asked = request(model)
    put(asked.data[0], "advantages", floats(3e38, 3e38))
    client.ask("forward_backward", asked.SerializeToString())
    return client.refusal("optim_step", {"model_id": model, "adam_params": {}})


@says("The body is not a ForwardBackwardRequest: ….")
def _(place: Place) -> str:
    return Client(place).refusal("forward_backward", b"\xff")


@says("A ForwardBackwardRequest needs a model_id and data.")
def _(place: Place) -> str:
    return Client(place).refusal("forward_backward", b"")
