"""What is laid out for a program is read where it is."""

import jax
import numpy as np
import pytest

from termrl.engine.decoding import empty_cache
from termrl.engine.models import BaseModel
from termrl.engine.prefixes import blank_block, joined


@pytest.mark.parametrize("positions", [0, 1, 7, 64, 513])
def test_keys_and_values_are_not_copied_on_their_way_into_a_program(base: BaseModel, positions: int) -> None:
    cache = empty_cache(base.config, rows=3, positions=positions)
    made = *blank_block(base.config, positions, 2), *joined(base.config, positions, [[], []])
    for array in (*made, *cache.keys, *cache.values):
        assert positions in array.shape
        assert not array.any()
        array[:] = np.arange(array.size, dtype=np.float32).reshape(array.shape)
        taken = jax.device_put(array)
        assert positions == 0 or taken.unsafe_buffer_pointer() == array.ctypes.data
        assert np.array_equal(np.asarray(taken), array)
