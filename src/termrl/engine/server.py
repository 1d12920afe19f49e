"""The engine as a server: where it may listen, with which key, until when."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from termrl.engine.compilation import set_up_jax
from termrl.engine.keys import KEY_PREFIX, KEY_VARIABLE, new_api_key
from termrl.engine.protocol import EngineServer, ServeError

__all__ = ["EngineServer", "ServeError", "serve", "serve_forever"]


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def serve_forever(
    host: str,
    port: int,
    models: Sequence[str],
    state_dir: Path,
    api_key: str,
    on_ready: Callable[[int], None],
    *,
    durable: bool = False,
    dtype: str = "float32",
    tensor_parallel: int = 1,
) -> None:
    """Serves until it is cancelled; `on_ready` is told the port."""
    server = EngineServer(
        state_dir, models, api_key, durable=durable, dtype=dtype, tensor_parallel=tensor_parallel
    )
    try:
        on_ready(await server.start(host, port))
        await asyncio.Event().wait()
    finally:
        await server.stop()


def serve(
    host: str = "127.0.0.1",
    port: int = 8000,
    models: Sequence[str] = ("termrl/tiny",),
    state_dir: Path = Path("engine-state"),
    api_key: str | None = None,
    dtype: str = "float32",
    tensor_parallel: int = 1,
) -> None:
    """Serves until interrupted. Without a key one is made and kept in the state directory, not printed.

    Started again on the same state directory it has the same key and goes on with what it was doing.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    if api_key is None and not is_loopback(host):
        raise ServeError(
            f"Serving on {host} needs a key of your own: put {KEY_PREFIX} and any long secret "
            f"into {KEY_VARIABLE}."
        )
    set_up_jax(state_dir / "cache", models)
    key_file = state_dir / "api_key"
    is_own_key = api_key is not None
    if api_key is None:
        api_key = _kept_key(key_file)

    def announce(bound: int) -> None:
        shown = f"[{host}]" if ":" in host else host
        print(f"The engine serves {', '.join(models)} at http://{shown}:{bound}", flush=True)
        if not is_own_key:
            print(f"Its key is in {key_file}: export TINKER_API_KEY=$(cat {key_file})", flush=True)

    try:
        asyncio.run(
            serve_forever(
                host,
                port,
                models,
                state_dir,
                api_key,
                announce,
                durable=True,
                dtype=dtype,
                tensor_parallel=tensor_parallel,
            )
        )
    except KeyboardInterrupt:
        print("The engine has stopped.")
    except OSError as error:
        raise ServeError(f"The engine cannot listen on {host}:{port}: {error.strerror or error}.") from None


def _kept_key(file: Path) -> str:
    """The key in the file, or a new one put there, readable by its owner alone."""
    if file.exists():
        held = file.read_text().strip()
        if held.startswith(KEY_PREFIX):
            return held
    key = new_api_key()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    file.touch(mode=0o600)
    file.write_text(key + "\n")
    return key
