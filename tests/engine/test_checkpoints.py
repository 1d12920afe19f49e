from __future__ import annotations

import time
from pathlib import Path

import jax
import numpy as np
import pytest

from termrl.engine.adam import AdamState, init_adam
from termrl.engine.architecture import LlamaConfig
from termrl.engine.checkpoints import (
    CheckpointError,
    CheckpointInfo,
    CheckpointMissing,
    CheckpointPath,
    CheckpointStore,
)
from termrl.engine.llama import init_params
from termrl.engine.lora import LoraSpec, init_lora

CONFIG = LlamaConfig(
    vocab_size=50,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
)
SPEC = LoraSpec(rank=4)
LORA = init_lora(CONFIG, init_params(CONFIG, 0), SPEC, seed=0)
PATH = CheckpointPath("run:train:0", "weights", "step-1")


def info(**changes: float | None) -> CheckpointInfo:
    return CheckpointInfo("some/model", SPEC, **({"created": time.time()} | changes))  # type: ignore[arg-type]


def test_a_checkpoint_comes_back_bit_for_bit_from_a_new_store(tmp_path: Path) -> None:
    adam = init_adam(LORA)
    adam = AdamState(jax.tree.map(lambda x: x + 0.1, adam.mean), adam.square, adam.step + 3)
    CheckpointStore(tmp_path).save(PATH, info(), LORA, adam)
    found, lora, loaded = CheckpointStore(tmp_path).load(PATH)
    assert (found.base_model, found.spec, found.has_optimizer) == ("some/model", SPEC, True)
    assert jax.tree.structure(lora) == jax.tree.structure(LORA)
    jax.tree.map(np.testing.assert_array_equal, lora, LORA)
    jax.tree.map(np.testing.assert_array_equal, loaded, adam)


def test_a_name_is_taken_until_overwritten(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(PATH, info(), LORA, None)
    with pytest.raises(CheckpointError, match="exists already"):
        store.save(PATH, info(), LORA, None)
    store.save(PATH, info(), LORA, init_adam(LORA), overwrite=True)
    assert store.info(PATH).has_optimizer


def test_half_a_checkpoint_is_never_seen_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path)
    store.save(PATH, info(), LORA, None)

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises(CheckpointError, match="No space left"):
        store.save(PATH, info(), LORA, init_adam(LORA), overwrite=True)
    assert not store.info(PATH).has_optimizer
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["step-1.safetensors"]


def test_a_damaged_checkpoint_says_so(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(PATH, info(), LORA, None)
    next(tmp_path.rglob("*.safetensors")).write_bytes(b"short")
    with pytest.raises(CheckpointError, match="damaged"):
        store.load(PATH)


def test_an_expired_checkpoint_is_gone(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(PATH, info(expires=time.time() - 1), LORA, None)
    with pytest.raises(CheckpointMissing):
        store.load(PATH)
    assert store.list() == []
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize(
    "text",
    [
        "run/weights/a",
        "tinker://run/weights",
        "tinker://run/weights/../../a",
        "tinker://../weights/a",
        "tinker://run/other/a",
        "tinker://run/weights/.hidden",
        "tinker://run/weights/",
    ],
)
def test_a_path_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(CheckpointError):
        CheckpointPath.parse(text)
