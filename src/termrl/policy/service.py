"""Who serves a model: the embedded engine, Tinker or a compatible server, or an endpoint through litellm.

Decided from the settings alone, before anything is started: a model directory or `termrl/tiny` is the
engine's; a name that begins with one of litellm's providers (`openai/...`, `anthropic/...`) is litellm's,
with `base_url` any OpenAI-compatible endpoint; every other name is Tinker's. What could be two of these is
refused and asked back.
"""

import asyncio
import os
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from termrl.engine.catalog import PACKAGED, SMOLLM2
from termrl.errors import UserError

TINKER_KEY = "TINKER_API_KEY"
REACH_SECONDS = 20.0
PROVIDER_KEYS = {
    "anthropic": "ANTHROPIC_API_KEY",
    "azure": "AZURE_API_KEY",
    "bedrock": "AWS_ACCESS_KEY_ID",
    "cohere": "COHERE_API_KEY",
    "deepseek": "DEEPSEEK_API_KEY",
    "fireworks_ai": "FIREWORKS_AI_API_KEY",
    "gemini": "GEMINI_API_KEY",
    "groq": "GROQ_API_KEY",
    "hosted_vllm": None,
    "mistral": "MISTRAL_API_KEY",
    "ollama": None,
    "openai": "OPENAI_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
    "together_ai": "TOGETHERAI_API_KEY",
    "vertex_ai": "GOOGLE_APPLICATION_CREDENTIALS",
    "xai": "XAI_API_KEY",
}
"""litellm's providers that names are recognised by, and the variable that holds each one's key."""


class ServiceUnclearError(UserError):
    """The settings fit two services, or none."""


class MissingKeyError(UserError):
    """A service was named whose key is not there."""


class UnreachableServiceError(UserError):
    """Nobody answers at the address that was given."""


class Service(StrEnum):
    ENGINE = "engine"
    TINKER = "tinker"
    LITELLM = "litellm"
    NONE = "none"


def choose_service(
    model_name: str, *, chosen: str = "auto", base_url: str | None, checkpoint_url: str | None
) -> Service:
    if chosen != "auto":
        return Service(chosen)
    if is_local(model_name) and base_url is None:
        return Service.ENGINE
    if checkpoint_url is not None:
        return Service.TINKER
    provider = model_name.partition("/")[0]
    if provider not in PROVIDER_KEYS:
        return Service.TINKER
    if model_name.startswith("openai/gpt-oss") and base_url is None:
        raise ServiceUnclearError(
            f"{model_name} is a model on Tinker and could be one at OpenAI too: "
            "say model_service=tinker or model_service=litellm."
        )
    return Service.LITELLM


def is_local(model_name: str) -> bool:
    """Whether the embedded engine is meant: a model that it brings, a directory or a file."""
    return (
        model_name in (*PACKAGED, SMOLLM2)
        or Path(model_name).expanduser().exists()
        or model_name[:1] in "./~"
    )


def require_key(service: Service, model_name: str, base_url: str | None) -> None:
    """Raises `MissingKeyError` where the service's key is not in the environment."""
    if service is Service.TINKER and not os.environ.get(TINKER_KEY):
        where = f"base_url is {base_url}" if base_url else f"{model_name} is served by Tinker"
        raise MissingKeyError(
            f"{where} but there is no {TINKER_KEY}: put it into .env, or let `termrl setup` ask for it."
        )
    if service is Service.LITELLM:
        variable = PROVIDER_KEYS.get(model_name.partition("/")[0])
        # An endpoint of one's own mostly needs no key; if it does, it says so at the first call.
        if variable is not None and base_url is None and not os.environ.get(variable):
            raise MissingKeyError(
                f"{model_name} is reached through litellm but there is no {variable}: put it into .env, "
                "or give the base_url of an endpoint of your own."
            )


async def require_reachable(base_url: str) -> None:
    """Raises where nobody listens: the clients would go on trying for minutes without a word."""
    parts = urlsplit(base_url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(REACH_SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, port)
        writer.close()
    except (OSError, TimeoutError) as error:
        reason = getattr(error, "strerror", None) or f"no answer within {REACH_SECONDS:.0f} seconds"
        raise UnreachableServiceError(
            f"Nobody answers at {base_url} ({reason}): start the server, or give another base_url."
        ) from error
