"""Names of models and the directories behind them; light enough to ask before anything heavy is imported.

A model is `termrl/tiny`, which ships with the package, or a local directory in Hugging Face's layout:
config.json, *.safetensors and tokenizer.json. What is missing is said in one sentence before anything loads.
"""

from pathlib import Path

from termrl.errors import UserError

PACKAGED = {"termrl/tiny": Path(__file__).parent / "tiny"}


class ModelFilesError(UserError):
    """A model directory is incomplete or its files do not fit each other."""


def resolve_model(name: str) -> Path:
    """The absolute directory of a model, complete as far as its list of files shows."""
    directory = PACKAGED.get(name)
    if directory is None:
        directory = Path(name).expanduser().absolute()
        if not directory.is_dir():
            known = ", ".join(PACKAGED)
            raise ModelFilesError(
                f"There is no model {name!r}: give one of {known}, or the path of a local model directory."
            )
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
    return directory
