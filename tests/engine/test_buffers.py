"""What is laid out for a program is read, and written, where it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from termrl.engine.buffers import Room, aligned_zeros, memory_of
from termrl.engine.decoding import make_cache
from termrl.engine.models import BaseModel
from termrl.engine.prefixes import by_layer, joined


@pytest.mark.parametrize("positions", [0, 1, 7, 64, 513])
def test_keys_and_values_are_not_copied_on_their_way_into_a_program(base: BaseModel, positions: int) -> None:
    cache = make_cache(base.config, 3, positions, aligned_zeros)
    joint = by_layer(joined(base.config, positions, [[], []], Room()))
    for array in (*joint.keys, *joint.values, *cache.keys, *cache.values):
        assert positions in array.shape
        assert not array.any()
        array[:] = np.arange(array.size, dtype=np.float32).reshape(array.shape)
        taken = jax.device_put(array)
        assert positions == 0 or taken.unsafe_buffer_pointer() == array.ctypes.data
        assert np.array_equal(np.asarray(taken), array)


def test_what_is_written_into_a_programs_own_memory_stays_there_and_is_not_copied() -> None:
    first, second = jnp.zeros((3, 5)), jnp.zeros((3, 5))
    memory_of(first)[1] = 7.0
    assert not second.any()
    place = first.unsafe_buffer_pointer()
    added = jax.jit(lambda x: x + 1, donate_argnums=0)(first)
    assert added.unsafe_buffer_pointer() == place
    assert np.array_equal(memory_of(added), np.asarray([[1.0] * 5, [8.0] * 5, [1.0] * 5]))


def test_room_is_taken_again_and_grows_where_it_has_to() -> None:
    room = Room()
    keys, values = room.take([(3, 5), (2, 7)])
    keys[:], values[:] = 1.0, 2.0
    assert (keys == 1.0).all()
    again, longer = room.take([(2, 2), (16,)])
    assert again.ctypes.data == keys.ctypes.data
    assert again.ctypes.data % 64 == longer.ctypes.data % 64 == 0
    [grown] = room.take([(100, 10)])
    grown[:] = 3.0
    assert room.take([(100, 10)])[0].ctypes.data == grown.ctypes.data
