"""`termrl engine serve`: the embedded engine for any Tinker client."""

import os
from pathlib import Path

from termrl.cli.arguments import parse, whole_number

DEFAULT_MODEL = "termrl/tiny"
DEFAULT_STATE = "./engine-state"
DEFAULT_PORT = 8000


def help_text() -> str:
    from termrl.engine.keys import KEY_VARIABLE

    return "\n".join(
        [
            "usage: termrl engine serve [model_name=NAME,...] [port=N] [host=ADDRESS] [state_dir=DIR]",
            "",
            "Serves the embedded engine until it is interrupted, to `termrl train base_url=URL` or to any",
            "program that uses the Tinker SDK.",
            "",
            f"  model_name={DEFAULT_MODEL:<18} models to serve, separated by commas",
            f"  port={DEFAULT_PORT:<24} port to listen on; 0 = a free one",
            f"  {'host=127.0.0.1':<29} address to listen on",
            f"  state_dir={DEFAULT_STATE:<19} where checkpoints are kept",
            "",
            f"A client needs the key: the one in {KEY_VARIABLE}, or one that is made and kept in state_dir.",
        ]
    )


def run(arguments: list[str]) -> int:
    given = parse(arguments, options=["model_name", "port", "host", "state_dir"])
    models = given.options.get("model_name", DEFAULT_MODEL).split(",")
    state_dir = Path(given.options.get("state_dir", DEFAULT_STATE)).expanduser()
    port = whole_number(given.options, "port", DEFAULT_PORT)
    print(f"starting the engine with {', '.join(models)}", flush=True)

    from termrl.engine.compilation import set_up_jax
    from termrl.engine.keys import KEY_VARIABLE

    set_up_jax(state_dir / "cache")

    from termrl.engine.server import serve

    serve(
        host=given.options.get("host", "127.0.0.1"),
        port=port,
        models=models,
        state_dir=state_dir,
        api_key=os.environ.get(KEY_VARIABLE) or None,
    )
    return 0
