"""The keys that services need: which variables hold them, and whether a key works.

Each service is asked with the smallest call that needs its key, at the address its own client would use.
`works` is None where it could not be asked (no network, client not installed): that is said, never taken
for a yes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Tested:
    works: bool | None
    said: str


@dataclass(frozen=True, slots=True)
class KeyedService:
    """`path` is asked with GET; `{KEY}` in a header stands for that variable's value."""

    name: str
    what_for: str
    variables: tuple[str, ...]
    base_variable: str = ""
    base_url: str = ""
    path: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    login: tuple[str, str] | None = None
    """User name and the variable of the password, where the service takes a login."""


SERVICES = {
    service.name: service
    for service in (
        KeyedService(
            "tinker",
            "training and sampling on Tinker",
            ("TINKER_API_KEY",),
            base_variable="TINKER_BASE_URL",
        ),
        KeyedService(
            "openai",
            "models at OpenAI, or an endpoint that speaks its protocol",
            ("OPENAI_API_KEY",),
            "OPENAI_BASE_URL",
            "https://api.openai.com/v1",
            "/models",
            {"Authorization": "Bearer {OPENAI_API_KEY}"},
        ),
        KeyedService(
            "anthropic",
            "models at Anthropic",
            ("ANTHROPIC_API_KEY",),
            "ANTHROPIC_BASE_URL",
            "https://api.anthropic.com",
            "/v1/models",
            {"x-api-key": "{ANTHROPIC_API_KEY}", "anthropic-version": "2023-06-01"},
        ),
        KeyedService(
            "openrouter",
            "models at OpenRouter",
            ("OPENROUTER_API_KEY",),
            "OPENROUTER_API_BASE",
            "https://openrouter.ai/api/v1",
            "/key",
            {"Authorization": "Bearer {OPENROUTER_API_KEY}"},
        ),
        KeyedService("modal", "sandboxes on Modal", ("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET")),
        KeyedService(
            "daytona",
            "sandboxes on Daytona",
            ("DAYTONA_API_KEY",),
            "DAYTONA_API_URL",
            "https://app.daytona.io/api",
            "/sandbox",
            {"Authorization": "Bearer {DAYTONA_API_KEY}"},
        ),
        KeyedService(
            "e2b",
            "sandboxes on E2B",
            ("E2B_API_KEY",),
            "E2B_API_URL",
            "https://api.e2b.app",
            "/sandboxes",
            {"X-API-Key": "{E2B_API_KEY}"},
        ),
        KeyedService(
            "wandb",
            "metrics at Weights & Biases",
            ("WANDB_API_KEY",),
            "WANDB_BASE_URL",
            "https://api.wandb.ai",
            "/graphql?query={viewer{id}}",
            login=("api", "WANDB_API_KEY"),
        ),
        KeyedService(
            "huggingface",
            "tokenizers of gated models",
            ("HF_TOKEN",),
            "HF_ENDPOINT",
            "https://huggingface.co",
            "/api/whoami-v2",
            {"Authorization": "Bearer {HF_TOKEN}"},
        ),
    )
}


async def try_key(service: KeyedService, values: Mapping[str, str]) -> Tested:
    """Asks the service with these values; `values` may also hold its address."""
    try:
        if service.name == "tinker":
            return await _test_tinker(values)
        if service.name == "modal":
            return await _test_modal(values)
        return await _test_http(service, values)
    except Exception as error:
        return Tested(None, f"could not be tested: {_first_line(error)}")


async def _test_http(service: KeyedService, values: Mapping[str, str]) -> Tested:
    import httpx

    base = (values.get(service.base_variable) or service.base_url).rstrip("/")
    headers = {name: text.format(**values) for name, text in service.headers.items()}
    login = (service.login[0], values[service.login[1]]) if service.login else None
    async with httpx.AsyncClient(timeout=SECONDS) as client:
        answer = await client.get(base + service.path, headers=headers, auth=login)
    if answer.status_code in (401, 403):
        return Tested(False, f"{base} refuses it (status {answer.status_code})")
    if answer.is_success:
        return Tested(True, f"{base} accepts it")
    return Tested(None, f"could not be tested: {base} answered with status {answer.status_code}")


async def _test_tinker(values: Mapping[str, str]) -> Tested:
    import asyncio

    import tinker

    base = values.get("TINKER_BASE_URL") or None
    key = values["TINKER_API_KEY"]
    if not key.startswith("tml-"):
        return Tested(False, "a Tinker key begins with tml-")
    try:
        with tinker.ServiceClient(base_url=base, api_key=key) as client:
            async with asyncio.timeout(SECONDS):
                served = await client.get_server_capabilities_async()
    except (tinker.AuthenticationError, tinker.PermissionDeniedError) as error:
        return Tested(False, f"Tinker refuses it: {_first_line(error)}")
    return Tested(True, f"Tinker accepts it and serves {len(served.supported_models)} models")


async def _test_modal(values: Mapping[str, str]) -> Tested:
    try:
        modal: Any = import_module("modal")
    except ImportError:
        return Tested(None, "could not be tested: modal is not installed (pip install 'harbor[modal]')")
    try:
        await modal.Client.from_credentials.aio(values["MODAL_TOKEN_ID"], values["MODAL_TOKEN_SECRET"])
    except modal.exception.AuthError as error:
        return Tested(False, f"Modal refuses it: {_first_line(error)}")
    return Tested(True, "Modal accepts it")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
