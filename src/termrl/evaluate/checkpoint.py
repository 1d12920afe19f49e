"""The checkpoint to evaluate: known, and of the model that was named, before anything is spent.

It is a tinker:// path or a RUN. A path that the embedded engine is to serve is looked up among the runs,
whose engine state holds it; any other is asked of the server.
"""

from dataclasses import dataclass
from pathlib import Path

import tinker

from termrl.errors import UserError
from termrl.store import Run, find_run, list_runs

SCHEME = "tinker://"


class UnknownCheckpointError(UserError):
    """There is no such checkpoint."""


class WrongBaseModelError(UserError):
    """The checkpoint is of another model than the one that was named."""


class RefusedKeyError(UserError):
    """The server does not let this key in."""


@dataclass(frozen=True, slots=True)
class LocalCheckpoint:
    """A checkpoint in a run of this machine: its path, and the engine's state that holds it."""

    path: str
    state: Path


def local_checkpoint(url: str, model_name: str, run_root: Path) -> LocalCheckpoint:
    """The checkpoint of a RUN, or the one that a tinker:// path names among the runs of this machine."""
    path = _run_with(url, run_root) if url.startswith(SCHEME) else find_run(url, run_root)
    with Run.open(path) as run:
        checkpoints, base_model = run.checkpoints(), str(run.settings.get("model_name"))
    if not checkpoints:
        raise UnknownCheckpointError(
            f"The run {path} has no checkpoint yet: give another one, or a tinker:// path."
        )
    require_base_model(url, base_model, model_name)
    return LocalCheckpoint(url if url.startswith(SCHEME) else checkpoints[-1].sampler_path, path / "engine")


def _run_with(url: str, run_root: Path) -> Path:
    for path in reversed(list_runs(run_root)):
        with Run.open(path) as run:
            if any(url == checkpoint.sampler_path for checkpoint in run.checkpoints()):
                return path
    raise UnknownCheckpointError(
        f"None of the runs under {run_root} has the checkpoint {url}: name the RUN it is of, or, if a server "
        "has it, that server by base_url or model_service=tinker."
    )


async def require_remote_checkpoint(
    url: str, model_name: str, *, base_url: str | None = None, api_key: str | None = None
) -> None:
    """Raises where the server has no such checkpoint, or has it of another model."""
    if not url.startswith(SCHEME):
        raise UnknownCheckpointError(
            f"checkpoint_url is '{url}': on a server a checkpoint is named tinker://RUN/sampler_weights/NAME."
        )
    try:
        client = tinker.RestClient(base_url=base_url, api_key=api_key)
        info = await client.get_weights_info_by_tinker_path(url)
    except (tinker.AuthenticationError, tinker.PermissionDeniedError) as error:
        raise RefusedKeyError(f"The server refuses the key: {_first_line(error)}.") from error
    except (tinker.APIStatusError, tinker.RequestFailedError, ValueError) as error:
        raise UnknownCheckpointError(
            f"The server has no checkpoint {url}: {_first_line(error)}. "
            "`tinker checkpoint list` shows those of your key; they expire."
        ) from error
    require_base_model(url, info.base_model, model_name)


def require_base_model(url: str, base_model: str, model_name: str) -> None:
    if base_model != model_name:
        raise WrongBaseModelError(
            f"The checkpoint {url} is of {base_model}, and model_name is {model_name}: "
            f"set model_name={base_model}."
        )


def _first_line(error: Exception) -> str:
    return (str(error).strip().partition("\n")[0] or type(error).__name__).rstrip(".")
