"""The model's own tokenizer, from a directory or by name.

A directory with a `tokenizer.json` is read with `tokenizers` alone, which takes milliseconds; a model's
name goes through `renderers` and `transformers`. Text is never read as control tokens: a terminal that
prints `<|im_end|>` does not end a turn.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from termrl.errors import UserError


class TokenizerError(UserError):
    """There is no tokenizer where one was asked for, or it can't be used."""


class Tokenizer(Protocol):
    """What rendering needs of a tokenizer; Hugging Face's have it too."""

    name_or_path: str
    unk_token_id: int | None
    eos_token_id: int | None

    def encode(self, text: str, *args: Any, **kwargs: Any) -> list[int]: ...

    def decode(self, token_ids: Any, *args: Any, **kwargs: Any) -> str: ...

    def convert_tokens_to_ids(self, tokens: Any) -> Any: ...


class FileTokenizer:
    """A `tokenizer.json` read without transformers. Special tokens in text are text."""

    def __init__(self, directory: Path) -> None:
        import tokenizers

        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
        except Exception as error:
            raise TokenizerError(
                f"{directory / 'tokenizer.json'} can't be read as a tokenizer: {error}"
            ) from error
        self._tokenizer.encode_special_tokens = True
        settings = _read_settings(directory)
        self.name_or_path = str(directory)
        self.chat_template = _read_chat_template(directory, settings)
        self.unk_token_id = self._setting_token(settings, "unk_token")
        self.eos_token_id = self._setting_token(settings, "eos_token")

    @property
    def vocab_size(self) -> int:
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, *args: Any, **kwargs: Any) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(
        self, token_ids: Iterable[int], *args: Any, skip_special_tokens: bool = False, **kwargs: Any
    ) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        if isinstance(tokens, str):
            return self._tokenizer.token_to_id(tokens)
        return [self._tokenizer.token_to_id(token) for token in cast(Sequence[str], tokens)]

    def _setting_token(self, settings: dict[str, Any], key: str) -> int | None:
        token = settings.get(key)
        if isinstance(token, dict):
            token = token.get("content")
        return self._tokenizer.token_to_id(token) if isinstance(token, str) else None


def load_tokenizer(source: Path | str) -> Tokenizer:
    """The tokenizer in a directory, or of a model by its name."""
    directory = Path(source).expanduser()
    if directory.is_dir():
        if not (directory / "tokenizer.json").is_file():
            raise TokenizerError(
                f"the model directory {directory} has no tokenizer.json; "
                "put the model's tokenizer files beside its weights"
            )
        return FileTokenizer(directory)
    if isinstance(source, Path) or directory.is_absolute() or str(source).startswith((".", "~")):
        raise TokenizerError(f"there is no model directory at {directory}")
    return _load_by_name(str(source))


def _load_by_name(name: str) -> Tokenizer:
    from renderers.base import load_tokenizer as load_with_transformers

    try:
        return cast(Tokenizer, load_with_transformers(name))
    except Exception as error:
        first_line = str(error).strip().partition("\n")[0]
        raise TokenizerError(
            f"no tokenizer could be loaded for the model {name}: {first_line}; "
            "give a model's name on the Hugging Face hub or a directory that holds a tokenizer.json"
        ) from error


def _read_settings(directory: Path) -> dict[str, Any]:
    path = directory / "tokenizer_config.json"
    if not path.is_file():
        return {}
    try:
        settings = json.loads(path.read_text())
    except ValueError as error:
        raise TokenizerError(f"{path} is not valid JSON: {error}") from error
    return settings if isinstance(settings, dict) else {}


def _read_chat_template(directory: Path, settings: dict[str, Any]) -> str | None:
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text()
    template = settings.get("chat_template")
    return template if isinstance(template, str) else None
