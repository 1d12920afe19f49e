"""The same numbers on two devices as on one; in a process of its own, where the CPU poses as two."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PROGRAM = """
import sys
import numpy as np
from termrl.engine.lora import LoraSpec
from termrl.engine.models import load_base_model
from termrl.engine.sampler import Sampler
from termrl.engine.sequences import SamplingSettings
from termrl.engine.rows import Datum
from termrl.engine.trainer import Trainer

model, tensor, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
base = load_base_model(model, tensor_parallel=tensor)
rng = np.random.default_rng(0)
data = [
    Datum(rng.integers(0, 97, n), rng.integers(0, 97, n), np.ones(n, np.float32), np.zeros(n, np.float32))
    for n in (40, 64, 9, 30)
]
trainer = Trainer(base, LoraSpec(4), 0)
run = trainer.run(data, "cross_entropy", {}, backward=True)
try:
    while True:
        next(run)
except StopIteration as end:
    result = end.value
answers = []
sampler = Sampler(base, base.params)
prompt, settings = rng.integers(2, 97, 50).astype(np.int32), SamplingSettings(8, 3, stops_at_eos=False)
sampler.sample(prompt, settings, 0, answers.append)
while sampler.busy:
    sampler.step()
np.savez(
    out,
    logprobs=np.concatenate(result.logprobs),
    gradient=np.concatenate([np.ravel(pair["b"]) for pair in trainer._gradients.values()]),
    tokens=answers[0].tokens,
    sampled=answers[0].logprobs,
    devices=len(base.params.embed.sharding.device_set),
)
"""


def compute(model: Path, place: Path, devices: int, tensor_parallel: int) -> dict[str, np.ndarray]:
    out = place / f"{devices}-{tensor_parallel}.npz"
    environment = os.environ | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_PLATFORMS": "cpu",
    }
    command = [sys.executable, "-c", PROGRAM, str(model), str(tensor_parallel), str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(np.load(out))


@pytest.fixture(scope="module")
def one(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    return compute(model_dir, tmp_path_factory.mktemp("one"), 1, 1)


@pytest.mark.parametrize("tensor_parallel", [1, 2])
def test_two_devices_compute_what_one_does(
    one: dict[str, np.ndarray], model_dir: Path, tmp_path: Path, tensor_parallel: int
) -> None:
    two = compute(model_dir, tmp_path, 2, tensor_parallel)
    assert (one["devices"], two["devices"]) == (1, 2)
    np.testing.assert_allclose(two["logprobs"], one["logprobs"], rtol=1e-5, atol=1e-5)
    scale = np.abs(one["gradient"]).max()
    np.testing.assert_allclose(two["gradient"], one["gradient"], atol=1e-5 * scale)
    np.testing.assert_array_equal(two["tokens"], one["tokens"])
    np.testing.assert_allclose(two["sampled"], one["sampled"], atol=1e-5)
