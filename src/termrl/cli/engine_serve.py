"""`termrl engine serve`: the embedded engine for any Tinker client."""

import os
from pathlib import Path

from termrl.cli.arguments import UsageError, parse, whole_number

DEFAULT_MODEL = "termrl/tiny"
DEFAULT_STATE = "./engine-state"
DEFAULT_PORT = 8000


def help_text() -> str:
    from termrl.engine.keys import KEY_VARIABLE

    return "\n".join(
        [
            "usage: termrl engine serve [model_name=NAME,...] [port=N] [host=ADDRESS] [state_dir=DIR]",
            "                           [dtype=float32|bfloat16] [tensor_parallel=N]",
            "",
            "Serves the embedded engine until it is interrupted, to `termrl train base_url=URL` or to any",
            "program that uses the Tinker SDK.",
            "",
            f"  model_name={DEFAULT_MODEL:<18} models to serve, separated by commas",
            f"  port={DEFAULT_PORT:<24} port to listen on; 0 = a free one",
            f"  {'host=127.0.0.1':<29} address to listen on",
            f"  state_dir={DEFAULT_STATE:<19} where checkpoints and the journal are kept: on it",
            f"  {'':<29} a killed engine, started again, goes on where it was",
            f"  {'dtype=float32':<29} float32, or bfloat16 for half the memory",
            f"  {'tensor_parallel=1':<29} devices that share one model, where JAX has several",
            "",
            "A model is termrl/tiny, smollm2-135m, a directory in Hugging Face's layout, a GGUF file,",
            "or a name on the Hugging Face hub.",
            "",
            f"A client needs the key: the one in {KEY_VARIABLE}, or one that is made and kept in state_dir.",
        ]
    )


def run(arguments: list[str]) -> int:
    given = parse(arguments, options=["model_name", "port", "host", "state_dir", "dtype", "tensor_parallel"])
    models = given.options.get("model_name", DEFAULT_MODEL).split(",")
    state_dir = Path(given.options.get("state_dir", DEFAULT_STATE)).expanduser()
    port = whole_number(given.options, "port", DEFAULT_PORT)
    dtype = given.options.get("dtype", "float32")
    if dtype not in ("float32", "bfloat16"):
        raise UsageError(f"dtype must be float32 or bfloat16, not {dtype!r}.")
    print(f"starting the engine with {', '.join(models)}", flush=True)

    from termrl.engine.catalog import resolve_model
    from termrl.engine.keys import KEY_VARIABLE

    for name in models:
        resolve_model(name, say=print)

    from termrl.engine.server import serve

    serve(
        host=given.options.get("host", "127.0.0.1"),
        port=port,
        models=models,
        state_dir=state_dir,
        api_key=os.environ.get(KEY_VARIABLE) or None,
        dtype=dtype,
        tensor_parallel=whole_number(given.options, "tensor_parallel", 1),
    )
    return 0
