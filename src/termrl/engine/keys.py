"""The key that every call to an engine carries; the SDK wants it to start with `tml-`."""

from __future__ import annotations

import secrets

KEY_PREFIX = "tml-"
KEY_VARIABLE = "TERMRL_ENGINE_KEY"
"""Where an engine process finds its key: in the environment; arguments can be read by others."""


def new_api_key() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(24)
