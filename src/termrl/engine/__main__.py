"""The engine as a process of its own: `python -m termrl.engine`.

The key comes from the environment. Once it listens it prints one line of JSON with its port. With --when-told
it imports what it needs and waits for its arguments, one line of JSON on its standard input; it ends when
that input does, that is with the process that started it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path

from termrl.engine.keys import KEY_VARIABLE


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m termrl.engine")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", action="append", required=True)
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--cache-dir", type=Path)
    parser.add_argument("--durable", action="store_true", help="keep a journal and go on after a kill")
    parser.add_argument("--tensor-parallel", type=int, default=1, help="devices that share one model")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    when_told = sys.argv[1:] == ["--when-told"]
    arguments = parser.parse_args(_told() if when_told else None)
    if when_told:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")

    from termrl.engine.compilation import set_up_jax

    set_up_jax(arguments.cache_dir or arguments.state_dir / "cache", arguments.model)

    from termrl.engine.server import serve_forever
    from termrl.errors import UserError

    def on_ready(port: int) -> None:
        print(json.dumps({"port": port}), flush=True)

    async def run() -> None:
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        await serve_forever(
            arguments.host,
            arguments.port,
            arguments.model,
            arguments.state_dir,
            os.environ.pop(KEY_VARIABLE, ""),
            on_ready,
            durable=arguments.durable,
            dtype=arguments.dtype,
            tensor_parallel=arguments.tensor_parallel,
        )

    try:
        asyncio.run(run())
    except asyncio.CancelledError:
        pass
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


def _told() -> list[str]:
    """The arguments, once somebody sends them; from then on what is said goes into the log that is named."""
    import termrl.engine.server  # noqa: F401

    line = b""
    while not line.endswith(b"\n"):
        if not (more := os.read(0, 65536)):
            os._exit(0)
        line += more
    told = json.loads(line)
    with open(told["log"], "ab") as log:
        os.dup2(log.fileno(), 2)
    return list(told["arguments"])


def _end_with_parent() -> None:
    # Raw reads: a buffered reader would hold its lock while the process ends.
    while os.read(0, 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
