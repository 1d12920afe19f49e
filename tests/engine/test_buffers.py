"""What is laid out for a program is read where it is."""

import jax
import numpy as np
import pytest

from termrl.engine.architecture import LlamaConfig
from termrl.engine.decoding import empty_cache
from termrl.engine.prefixes import blank_block

CONFIG = LlamaConfig(
    vocab_size=32,
    hidden_size=8,
    intermediate_size=8,
    num_hidden_layers=3,
    num_attention_heads=2,
    num_key_value_heads=1,
    rope_theta=1e4,
    max_position_embeddings=1024,
)


@pytest.mark.parametrize("positions", [1, 7, 64, 513])
def test_keys_and_values_are_not_copied_on_their_way_into_a_program(positions: int) -> None:
    cache = empty_cache(CONFIG, rows=3, positions=positions)
    for array in (*blank_block(CONFIG, positions, 2), *cache.keys, *cache.values):
        assert not array.any()
        array[:] = np.arange(array.size, dtype=np.float32).reshape(array.shape)
        taken = jax.device_put(array)
        assert taken.unsafe_buffer_pointer() == array.ctypes.data
        assert np.array_equal(np.asarray(taken), array)


def test_nothing_before_a_piece_is_an_array_too() -> None:
    assert blank_block(CONFIG, 0, 1).keys.shape == (3, 1, 1, 4, 0)
