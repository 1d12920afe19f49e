"""The engine's speed, as shares of what the machine's own matrix product does in the same run.

    python bench/engine.py [--json] [--check] [--model smollm2-135m] [--only decode,prefill,…]
    python bench/engine.py --against llama.cpp,torch    # measures them beside ours, where they are installed

Everything goes through the SDK to an engine process, as users do it. Work is counted as 2N operations a token
decoded or prefilled and 4N a token of LoRA forward and backward, N the model's parameters. A figure is the
best of a few runs after a first that compiles. --check exits 1 where a promised figure is missed. Run it on a
quiet machine: it takes about five minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TINKER_TELEMETRY", "0")

import numpy as np
import tinker
from tinker import types

from engine_others import OTHERS, measure_others
from termrl.cache import cache_directory
from termrl.engine.architecture import LlamaConfig
from termrl.engine.catalog import SMOLLM2, resolve_model
from termrl.engine.process import EngineHandle, start_engine
from termrl.errors import UserError

TINY = "termrl/tiny"
SMOLLM2_SHAPE = LlamaConfig(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    rope_theta=100000.0,
    max_position_embeddings=8192,
)
RUNS = 6
PROMISED = {
    "decode 32": 0.42,
    "prefill": 0.8,
    "train 8x128": 0.55,
    "train 1x2048": 0.38,
    "tiny decode 32": 1.0,
    "turn": 1.0,
    "http 64": 0.8,
}
"""What must be reached: shares of the product's rate, or of the figure that was promised."""
TEMPORARY, TEMPORARY_MB = "train_1x2048_temporary_mb", 2000


@dataclass(frozen=True)
class Figure:
    name: str
    rate: float
    unit: str
    ratio: float

    @property
    def reached(self) -> bool:
        return self.ratio >= PROMISED[self.name]


def peak_flops() -> float:
    """The best of five 2048-cubed float32 products on all cores."""
    a = np.random.default_rng(0).standard_normal((2048, 2048), dtype=np.float32)
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - begin)
    return 2 * 2048**3 / best


def the_model(name: str) -> str:
    """SmolLM2-135M where it can be had, else a random model of its shape."""
    try:
        resolve_model(name, lambda line: print(line, file=sys.stderr))
        return name
    except UserError as error:
        print(f"{error} A random model of the same shape stands in.", file=sys.stderr)
    from termrl.engine.llama import init_params
    from termrl.engine.weights import save_model

    directory = cache_directory() / "models" / "random-135m"
    if not (directory / "config.json").exists():
        save_model(directory, SMOLLM2_SHAPE, init_params(SMOLLM2_SHAPE, 0))
        tokenizer = resolve_model(TINY) / "tokenizer.json"
        (directory / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    return str(directory)


def read_config(model: str) -> LlamaConfig:
    return LlamaConfig.from_hf(json.loads((resolve_model(model) / "config.json").read_text()))


@asynccontextmanager
async def serving(model: str) -> AsyncIterator[tuple[tinker.ServiceClient, EngineHandle]]:
    with tempfile.TemporaryDirectory() as place:
        started = start_engine(
            Path(place) / "state",
            models=[model],
            log_path=Path(place) / "log",
            cache_dir=cache_directory() / "compiled",
        )
        async with started as handle:
            yield tinker.ServiceClient(base_url=handle.base_url, api_key=handle.api_key), handle


def prompts(config: LlamaConfig, count: int, length: int, seed: int) -> list[types.ModelInput]:
    rng = np.random.default_rng(seed)
    return [
        types.ModelInput.from_ints(rng.integers(3, config.vocab_size, length).tolist()) for _ in range(count)
    ]


async def sample_all(
    client: tinker.SamplingClient, inputs: list[types.ModelInput], max_tokens: int, seed: int = 0
) -> float:
    """Seconds until every request has its answer."""
    params = types.SamplingParams(max_tokens=max_tokens, seed=seed, stop=[])
    begin = time.perf_counter()
    answers = await asyncio.gather(*(client.sample_async(prompt, 1, params) for prompt in inputs))
    taken = time.perf_counter() - begin
    assert all(len(answer.sequences[0].tokens) == max_tokens for answer in answers)
    return taken


async def best(run: Callable[[int], Awaitable[float]]) -> float:
    """The shortest of a few runs, the first of which may compile; each is given a seed of its own."""
    await run(0)
    taken = [await run(1), await run(2)]
    # What is compiled beside the first runs may only be used by later ones.
    while len(taken) < RUNS and min(taken[:-1]) > 1.05 * taken[-1]:
        taken.append(await run(len(taken) + 1))
    return min(taken)


async def decode(service: tinker.ServiceClient, model: str, count: int, tokens: int) -> float:
    """Tokens a second, `count` at once."""
    config = read_config(model)
    client = await service.create_sampling_client_async(base_model=model)
    return (
        count * tokens / await best(lambda seed: sample_all(client, prompts(config, count, 8, seed), tokens))
    )


async def prefill(service: tinker.ServiceClient, model: str) -> float:
    config = read_config(model)
    client = await service.create_sampling_client_async(base_model=model)
    return 16 * 512 / await best(lambda seed: sample_all(client, prompts(config, 16, 512, seed), 1))


async def turn(service: tinker.ServiceClient, model: str) -> float:
    """A tenth of a 2,000-token prefill over the time of a turn that extends it by 100 tokens."""
    config = read_config(model)
    client = await service.create_sampling_client_async(base_model=model)

    async def both(seed: int) -> tuple[float, float]:
        [long] = prompts(config, 1, 2100, seed)
        scratch = await sample_all(client, [types.ModelInput.from_ints(long.to_ints()[:2000])], 1)
        return scratch, await sample_all(client, [long], 1)

    await both(1)
    taken = [await both(seed) for seed in (2, 3)]
    return min(scratch for scratch, _ in taken) / 10 / min(extended for _, extended in taken)


async def train(service: tinker.ServiceClient, model: str, count: int, length: int) -> float:
    config = read_config(model)
    trainee = await service.create_lora_training_client_async(model, rank=16, seed=0)

    def data(seed: int) -> list[types.Datum]:
        rows = [prompt.to_ints() for prompt in prompts(config, count, length + 1, seed)]
        return [
            types.Datum(
                model_input=types.ModelInput.from_ints(row[:-1]),
                loss_fn_inputs={"target_tokens": row[1:], "weights": [1.0] * length},
            )
            for row in rows
        ]

    async def one_pass(seed: int) -> float:
        batch = data(seed)
        begin = time.perf_counter()
        await (await trainee.forward_backward_async(batch, "cross_entropy")).result_async()
        return time.perf_counter() - begin

    return count * length / await best(one_pass)


def inside(model: str, count: int, tokens: int) -> float:
    """Tokens a second of one batch in this process, without HTTP or the SDK."""
    from termrl.engine.compilation import set_up_jax

    set_up_jax(cache_directory() / "compiled", [model])
    from termrl.engine.models import load_base_model
    from termrl.engine.sampler import Sampler
    from termrl.engine.sequences import SamplingSettings

    base = load_base_model(model)
    sampler = Sampler(base, base.params)

    async def run(seed: int) -> float:
        for prompt in prompts(base.config, count, 8, seed):
            settings = SamplingSettings(max_tokens=tokens, seed=seed, stops_at_eos=False)
            sampler.sample(np.asarray(prompt.to_ints(), np.int32), settings, 0, lambda _: None)
        begin = time.perf_counter()
        while sampler.busy:
            sampler.step()
        return time.perf_counter() - begin

    return count * tokens / asyncio.run(best(run))


def memory(pid: int, field: str) -> float:
    """Megabytes, from the kernel's own account of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc has no {field}.")


async def measure(
    model: str, only: set[str], say: Callable[[str], None]
) -> tuple[dict[str, Any], list[Figure]]:
    peak = peak_flops()
    parameters = read_config(model).parameters
    tiny = read_config(TINY).parameters
    notes: dict[str, Any] = {"gflops": round(peak / 1e9, 1), "model": model, "parameters": parameters}
    figures = []

    def wanted(name: str) -> bool:
        return not only or name.split()[0] in only

    def add(name: str, rate: float, unit: str, ratio: float) -> None:
        figures.append(Figure(name, rate, unit, ratio))
        say(f"{name:<16} {rate:>10.1f} {unit:<10} {ratio:6.2f} of {PROMISED[name]:.2f} promised")

    say(f"{'product':<16} {peak / 1e9:>10.1f} GFLOPS     {model}, {parameters / 1e6:.0f}M parameters")
    if any(wanted(name) for name in ("decode", "prefill", "train", "turn")):
        async with serving(model) as (service, handle):
            if wanted("decode"):
                rate = await decode(service, model, 32, 48)
                add("decode 32", rate, "tokens/s", rate * 2 * parameters / peak)
            if wanted("prefill"):
                rate = await prefill(service, model)
                add("prefill", rate, "tokens/s", rate * 2 * parameters / peak)
            if wanted("turn"):
                ratio = await turn(service, model)
                add("turn", 0.1 / ratio, "of prefill", ratio)
            if wanted("train"):
                rate = await train(service, model, 8, 128)
                add("train 8x128", rate, "tokens/s", rate * 4 * parameters / peak)
        async with serving(model) as (service, handle):
            if wanted("train"):
                await train(service, model, 1, 64)
                before = memory(handle.pid, "VmRSS")
                rate = await train(service, model, 1, 2048)
                notes[TEMPORARY] = round(memory(handle.pid, "VmHWM") - before)
                add("train 1x2048", rate, "tokens/s", rate * 4 * parameters / peak)
    if wanted("tiny") or wanted("http"):
        async with serving(TINY) as (service, _):
            if wanted("tiny"):
                rate = await decode(service, TINY, 32, 128)
                promised = 10_000 * (1e6 / tiny) * (peak / 150e9)
                add("tiny decode 32", rate, "tokens/s", rate / promised)
            if wanted("http"):
                rate = await decode(service, TINY, 64, 96)
        if wanted("http"):
            command = [sys.executable, __file__, "--inside", TINY]
            found = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, check=True
            )
            alone = float(found.stdout)
            add("http 64", rate, "tokens/s", rate / alone)
    return notes, figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one object for machines")
    parser.add_argument("--check", action="store_true", help="exit 1 where a promised figure is missed")
    parser.add_argument("--model", default=SMOLLM2)
    parser.add_argument("--only", default="", help="decode, prefill, turn, train, tiny, http")
    parser.add_argument("--against", default="", help=f"measure others too: {', '.join(OTHERS)}")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        print(inside(arguments.inside, 64, 96))
        return
    others = list(filter(None, arguments.against.split(",")))
    if unknown := set(others) - set(OTHERS):
        parser.error(f"--against knows {', '.join(OTHERS)}, not {', '.join(sorted(unknown))}")
    model = the_model(arguments.model)
    say = print if not arguments.json else (lambda line: print(line, file=sys.stderr))
    only = set(filter(None, arguments.only.split(",")))
    notes, figures = asyncio.run(measure(model, only, say))
    notes |= measure_others(others, model, say)
    if arguments.json:
        table = {figure.name: {"rate": figure.rate, "ratio": figure.ratio} for figure in figures}
        print(json.dumps(notes | table))
    else:
        for name, value in notes.items():
            print(f"{name}: {value}")
    missed = [f"{f.name} {f.ratio:.2f} of {PROMISED[f.name]:.2f}" for f in figures if not f.reached]
    if (taken := notes.get(TEMPORARY, 0)) > TEMPORARY_MB:
        missed.append(f"{TEMPORARY} {taken} of at most {TEMPORARY_MB}")
    if arguments.check and missed:
        sys.exit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
