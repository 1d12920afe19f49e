"""A Tinker client without the SDK, which would not send what an engine has to refuse."""

import json
from collections.abc import Mapping
from itertools import count
from typing import Any

import httpx

from producers import Place
from termrl.engine.protocol import API

_numbers = count()
"""Requests and what they make are numbered by their client."""


class Client:
    """One session on the engine that the producers share."""

    def __init__(self, place: Place, key: str | None = None) -> None:
        engine = place.engine
        self._http = httpx.Client(
            base_url=f"{engine.base_url}{API}", headers={"X-API-Key": key or engine.api_key}, timeout=120
        )
        self.session = "" if key else self.ask("create_session", {})["session_id"]

    def refusal(self, call: str, body: Any = None, *, method: str = "POST") -> str:
        """What the engine says to a call that it refuses, at once or when it is the request's turn."""
        answer = self.ask(call, body, method=method)
        return str(answer["error"])

    def ask(self, call: str, body: Any = None, *, method: str = "POST") -> dict[str, Any]:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        reply = self._http.request(method, f"/{call}", content=content)
        answer: dict[str, Any] = reply.json()
        while "request_id" in answer:
            reply = self._http.post("/retrieve_future", json={"request_id": answer["request_id"]})
            is_json = reply.headers["Content-Type"].startswith("application/json")
            answer = reply.json() if is_json else {}
        return answer

    def model(self, *, rank: int = 1, base_model: str = "termrl/tiny") -> str:
        """A new training client."""
        body = {"session_id": self.session, "model_seq_id": next(_numbers), "base_model": base_model}
        made = self.ask("create_model", {**body, "lora_config": {"rank": rank, "seed": 0}})
        return str(made["model_id"])

    def saved(self, model: str, name: str = "a", *, overwrite: bool = False) -> str:
        """The path of sampler weights."""
        body = {"model_id": model, "path": name, "overwrite": overwrite}
        return str(self.ask("save_weights_for_sampler", body)["path"])

    def sampler(self, path: str | None = None) -> str:
        """A new sampling session."""
        source = {"base_model": "termrl/tiny"} if path is None else {"model_path": path}
        body = {"session_id": self.session, "sampling_session_seq_id": next(_numbers), **source}
        return str(self.ask("create_sampling_session", body)["sampling_session_id"])

    def sample(self, sampler: str, changes: Mapping[str, Any]) -> str:
        """What is said to a request to sample that differs from a good one in this."""
        body = {
            "sampling_session_id": sampler,
            "seq_id": next(_numbers),
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]},
            "sampling_params": {"max_tokens": 1},
        }
        return self.refusal("asample", {**body, **changes})
