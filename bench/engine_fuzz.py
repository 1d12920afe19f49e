"""Throws broken and odd requests at a running engine: `python bench/engine_fuzz.py --seconds 300`.

Bodies are random bytes, damaged real requests, and well-formed ones with odd values, over every route. The
engine must answer each with something other than a 5xx, and live. Prints how many requests it took.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

from termrl.engine.process import EngineHandle, start_engine

POSTS = [
    "client/config",
    "client/dynamic_config",
    "create_session",
    "session_heartbeat",
    "telemetry",
    "create_model",
    "unload_model",
    "get_info",
    "forward_backward",
    "optim_step",
    "save_weights",
    "load_weights",
    "save_weights_for_sampler",
    "asample",
    "save_weights_external",
    "create_sampling_session",
    "retrieve_future",
    "cancel_future",
    "weights_info",
    "copy_weights",
    "sessions/search",
    "sessions/x/finish",
    "create_custom_loss",
    "nowhere",
]
GETS = [
    "healthz",
    "get_server_capabilities",
    "samplers/x",
    "training_runs",
    "training_runs/x",
    "training_runs/x/checkpoints",
    "checkpoints",
    "sessions",
    "sessions/x",
    "training_runs/x/checkpoints/weights/y/external_weights_urls",
    "downloads/x/weights/y/z?until=9&signature=0",
    "training_runs?offset=-1",
    "checkpoints?limit=x",
]
ODD: tuple[Any, ...] = (
    None, True, 0, -1, 2**63, 2**200, 1.5, float("nan"), float("inf"), "", "x", "\0", "../../etc/passwd",
    "tinker://a/weights/b", "tinker://a/b", [], [[]], {}, {"a": {"b": []}}, "é" * 2000, [2**40],
)  # fmt: skip
FIELDS = [
    "session_id",
    "model_id",
    "seq_id",
    "sampling_session_id",
    "sampling_session_seq_id",
    "model_seq_id",
    "base_model",
    "lora_config",
    "adam_params",
    "path",
    "ttl_seconds",
    "overwrite",
    "optimizer",
    "num_samples",
    "prompt",
    "sampling_params",
    "prompt_logprobs",
    "topk_prompt_logprobs",
    "topk_sample_logprobs",
    "target_prompt_logprobs",
    "prompt_alt_tokens_k",
    "prompt_logprobs_last_n",
    "request_id",
    "tinker_path",
    "source_path",
    "user_metadata",
    "cursor",
    "limit",
    "statuses",
]


class Fuzzer:
    def __init__(self, rng: random.Random, names: dict[str, Any]) -> None:
        self._rng = rng
        self._names = names

    def body(self) -> bytes:
        kind = self._rng.random()
        if kind < 0.15:
            return self._rng.randbytes(self._rng.randrange(200))
        if kind < 0.3:
            text = bytearray(json.dumps(self._object()).encode())
            for _ in range(self._rng.randrange(1, 4)):
                text[self._rng.randrange(len(text))] = self._rng.randrange(256)
            return bytes(text)
        if kind < 0.45:
            return self._pass_request()
        return json.dumps(self._object()).encode()

    def _object(self) -> dict[str, Any]:
        found = dict(self._names)
        for name in self._rng.sample(FIELDS, self._rng.randrange(1, 8)):
            found[name] = self._value()
        return found

    def _value(self, depth: int = 0) -> Any:
        if depth < 3 and self._rng.random() < 0.3:
            keys = [
                "chunks",
                "tokens",
                "type",
                "rank",
                "seed",
                "max_tokens",
                "stop",
                "top_p",
                "data",
                "shape",
            ]
            return {key: self._value(depth + 1) for key in self._rng.sample(keys, 3)}
        if depth < 3 and self._rng.random() < 0.2:
            return [self._value(depth + 1) for _ in range(self._rng.randrange(4))]
        return self._rng.choice(ODD)

    def _pass_request(self) -> bytes:
        from tinker.proto import tinker_public_pb2 as pb

        message = pb.ForwardBackwardRequest(
            model_id=self._names["model_id"], seq_id=self._rng.randrange(2**31)
        )
        message.loss_fn = self._rng.choice(["cross_entropy", "ppo", "gspo", "custom", "", "x"])
        for _ in range(self._rng.randrange(3)):
            datum = message.data.add()
            datum.model_input.add().encoded_text.tokens = self._rng.randbytes(self._rng.choice([0, 3, 4, 40]))
            for name in ("target_tokens", "weights", "logprobs", "advantages"):
                tensor = datum.loss_fn_inputs[name]
                tensor.dense = self._rng.randbytes(self._rng.choice([0, 5, 8, 40, 80]))
                tensor.dtype = self._rng.randrange(4)
                tensor.shape.extend(self._rng.choice([[], [10], [-1], [2**40], [5, 2]]))
        raw = bytearray(message.SerializeToString())
        if raw and self._rng.random() < 0.5:
            raw[self._rng.randrange(len(raw))] = self._rng.randrange(256)
        return bytes(raw)


async def fuzz(engine: EngineHandle, seconds: float, seed: int) -> dict[str, int]:
    """Answers by status; raises if the engine fails or dies."""
    rng = random.Random(seed)
    statuses: dict[str, int] = {}
    end = time.monotonic() + seconds
    headers = {"X-API-Key": engine.api_key}
    async with aiohttp.ClientSession(f"{engine.base_url}/api/v1/", headers=headers) as client:
        async with client.post("create_session", json={}) as answer:
            session = (await answer.json())["session_id"]
        names = {"session_id": session, "model_id": f"{session}:train:0", "seq_id": 1, "type": "x"}
        fuzzer = Fuzzer(rng, names)
        limit = aiohttp.ClientTimeout(total=60)
        while time.monotonic() < end:
            if rng.random() < 0.1:
                method, path, body = "GET", rng.choice(GETS), b""
            else:
                method, path, body = "POST", rng.choice(POSTS), fuzzer.body()
            async with client.request(method, path, data=body, timeout=limit) as answer:
                await answer.read()
                statuses[str(answer.status)] = statuses.get(str(answer.status), 0) + 1
                if answer.status >= 500:
                    raise RuntimeError(f"{method} {path} got {answer.status} for {body[:2000]!r}")
        async with client.get("healthz") as answer:
            assert answer.status == 200
    return statuses


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="termrl/tiny")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        started = start_engine(Path(place) / "state", models=[arguments.model], log_path=Path(place) / "log")
        async with started as engine:
            statuses = await fuzz(engine, arguments.seconds, arguments.seed)
            log = (Path(place) / "log").read_text()
    print(json.dumps({"requests": sum(statuses.values()), "by_status": statuses}))
    if "Traceback" in log:
        print(log[-4000:], file=sys.stderr)
        sys.exit("The engine logged an error of its own.")


if __name__ == "__main__":
    asyncio.run(main())
