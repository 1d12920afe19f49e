"""The engine's speed, as shares of what the machine's own matrix product does before and after.

    python bench/engine.py [--json] [--check] [--model smollm2-135m] [--only decode,prefill,…]
    python bench/engine.py --against llama.cpp,torch    # measures them beside ours, where they are installed

Everything goes through the SDK to an engine process, as users do it. Work is counted as 2N operations a token
decoded or prefilled and 4N a token of LoRA forward and backward, N the model's parameters. A figure is the
best of the runs in which the engine compiled nothing, each on prompts it has not seen. What is decoded is
counted from the second token on: the time that the same number of fresh prompts takes to its first token,
which is prefill, is measured apart and taken off; "http 64" takes nothing off. --check exits 1 where a
promised figure is missed. Run it on a quiet machine: it takes about seven minutes, more the first time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
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
CLEAN_RUNS, MOST_RUNS = 3, 9
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
LIMITS = {"train_1x2048_temporary_mb": 2000.0, "tiny_first_sample_seconds": 10.0}
"""What must not be passed."""


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


class CompilationLog:
    """What an engine's log says of its compiling."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def begun(self) -> int:
        return self._path.read_text().count("Compiling ")

    def wait_until_quiet(self) -> None:
        """Until all that was begun is done."""
        while self._path.read_text().count("Compiled ") < self.begun:
            time.sleep(0.1)


@dataclass(frozen=True)
class Served:
    service: tinker.ServiceClient
    handle: EngineHandle
    log: CompilationLog
    model: str

    async def sampling_client(self) -> tinker.SamplingClient:
        return await self.service.create_sampling_client_async(base_model=self.model)

    async def training_client(self) -> tinker.TrainingClient:
        return await self.service.create_lora_training_client_async(self.model, rank=16, seed=0)


@asynccontextmanager
async def serving(model: str) -> AsyncIterator[Served]:
    with tempfile.TemporaryDirectory() as place:
        started = start_engine(
            Path(place) / "state",
            models=[model],
            log_path=Path(place) / "log",
            cache_dir=cache_directory() / "compiled",
        )
        async with started as handle:
            service = tinker.ServiceClient(base_url=handle.base_url, api_key=handle.api_key)
            yield Served(service, handle, CompilationLog(Path(place) / "log"), model)
            await asyncio.to_thread(service.close("success").result)


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


async def best(run: Callable[[int], Awaitable[float]], log: CompilationLog) -> float:
    """The shortest of the runs beside which nothing was compiled; each is given a seed of its own."""
    clean: list[float] = []
    for seed in range(MOST_RUNS):
        await asyncio.to_thread(log.wait_until_quiet)
        begun = log.begun
        taken = await run(seed)
        if log.begun == begun:
            clean.append(taken)
        if len(clean) == CLEAN_RUNS:
            return min(clean)
    raise RuntimeError(f"The engine still compiled new programs in the last of {MOST_RUNS} runs.")


async def decode(served: Served, count: int, tokens: int) -> float:
    """Tokens a second, `count` at once, from the second on."""
    config, client = read_config(served.model), await served.sampling_client()
    whole = await best(lambda seed: sample_all(client, prompts(config, count, 8, seed), tokens), served.log)
    first = await best(lambda seed: sample_all(client, prompts(config, count, 8, 1000 + seed), 1), served.log)
    return count * (tokens - 1) / (whole - first)


async def answer(served: Served, count: int, tokens: int) -> float:
    """Tokens a second, `count` at once, their prompts' prefill and all."""
    config, client = read_config(served.model), await served.sampling_client()
    return (
        count
        * tokens
        / await best(lambda seed: sample_all(client, prompts(config, count, 8, seed), tokens), served.log)
    )


async def prefill(served: Served) -> float:
    config, client = read_config(served.model), await served.sampling_client()
    return 8 * 512 / await best(lambda seed: sample_all(client, prompts(config, 8, 512, seed), 1), served.log)


async def first_sample(model: str) -> float:
    """Seconds from nothing running to an answer, with what is compiled in the cache."""
    begin = time.perf_counter()
    async with serving(model) as served:
        await sample_all(await served.sampling_client(), prompts(read_config(model), 1, 100, 0), 1)
        return time.perf_counter() - begin


async def turn(served: Served) -> float:
    """A tenth of a 2,000-token prefill over the time of a turn that extends it by 100 tokens."""
    config, client = read_config(served.model), await served.sampling_client()
    extended: list[float] = []

    async def both(seed: int) -> float:
        # Seeds of its own: other measurements' prompts begin alike, and what they left would be found.
        [long] = prompts(config, 1, 2100, 2000 + seed)
        scratch = await sample_all(client, [types.ModelInput.from_ints(long.to_ints()[:2000])], 1)
        extended.append(await sample_all(client, [long], 1))
        return scratch

    scratch = await best(both, served.log)
    return scratch / 10 / min(extended)


async def train(served: Served, trainee: tinker.TrainingClient, count: int, length: int) -> float:
    config = read_config(served.model)

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

    return count * length / await best(one_pass, served.log)


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

    with tempfile.TemporaryDirectory() as place:
        log = Path(place) / "log"
        logging.basicConfig(filename=log, level=logging.INFO)
        log.touch()
        return count * tokens / asyncio.run(best(run, CompilationLog(log)))


def memory(pid: int, field: str) -> float:
    """Megabytes, from the kernel's own account of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc has no {field}.")


def forget_peak(pid: int) -> None:
    """Have the kernel count VmHWM anew: what compiling took is no longer in it, what it left behind is."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


async def measure(
    model: str, only: set[str], say: Callable[[str], None]
) -> tuple[dict[str, Any], list[Figure]]:
    parameters = read_config(model).parameters
    tiny = read_config(TINY).parameters
    notes: dict[str, Any] = {"model": model, "parameters": parameters}
    figures = []

    def wanted(name: str) -> bool:
        return not only or name.split()[0] in only

    def add(name: str, rate: float, unit: str, ratio: float) -> None:
        figures.append(Figure(name, rate, unit, ratio))
        say(f"{name:<16} {rate:>10.1f} {unit:<10} {ratio:6.2f} of {PROMISED[name]:.2f} promised")

    async def add_share(name: str, measured: Awaitable[float], work: float) -> None:
        """`work` is a token's, in operations. The product is the better of before and after."""
        before = await asyncio.to_thread(peak_flops)
        rate = await measured
        product = max(before, await asyncio.to_thread(peak_flops))
        say(f"{'product':<16} {product / 1e9:>10.1f} GFLOPS")
        notes[f"{name} gflops"] = round(product / 1e9, 1)
        add(name, rate, "tokens/s", rate * work / product)

    say(f"{model}, {parameters / 1e6:.0f}M parameters")
    if any(wanted(name) for name in ("decode", "prefill", "train", "turn")):
        async with serving(model) as served:
            if wanted("decode"):
                await add_share("decode 32", decode(served, 32, 48), 2 * parameters)
            if wanted("prefill"):
                await add_share("prefill", prefill(served), 2 * parameters)
            if wanted("turn"):
                ratio = await turn(served)
                add("turn", 0.1 / ratio, "of prefill", ratio)
            if wanted("train"):
                trainee = await served.training_client()
                await add_share("train 8x128", train(served, trainee, 8, 128), 4 * parameters)
    if wanted("train"):
        async with serving(model) as served:
            trainee = await served.training_client()
            await train(served, trainee, 1, 64)
            before = memory(served.handle.pid, "VmRSS")
            await add_share("train 1x2048", train(served, trainee, 1, 2048), 4 * parameters)
            forget_peak(served.handle.pid)
            await train(served, trainee, 1, 2048)
            notes["train_1x2048_temporary_mb"] = round(memory(served.handle.pid, "VmHWM") - before)
    if wanted("http"):
        async with serving(model) as served:
            rate = await answer(served, 64, 48)
        command = [sys.executable, __file__, "--inside", model]
        found = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
        add("http 64", rate, "tokens/s", rate / float(found.stdout))
    if wanted("tiny"):
        async with serving(TINY) as served:
            # As much work a token as makes 10,000 of them a second at 1M parameters and 150 GFLOPS.
            await add_share("tiny decode 32", decode(served, 32, 128), 150e9 / 10_000 * (tiny / 1e6))
        notes["tiny_first_sample_seconds"] = round(await first_sample(TINY), 1)
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
        print(inside(arguments.inside, 64, 48))
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
    missed += [
        f"{name} {notes[name]} of at most {most}"
        for name, most in LIMITS.items()
        if notes.get(name, 0) > most
    ]
    if arguments.check and missed:
        sys.exit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
