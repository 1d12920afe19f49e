from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from carried import carried_tokenizer
from termrl.policy.chatml import ChatMLRenderer
from termrl.policy.tokenizer import FileTokenizer

MERGES = [("h", "e"), ("he", "l"), ("hel", "l"), ("hell", "o"), ("Ċ", "Ċ"), ("s", "t"), ("a", "st")]


def make_tokenizer(directory: Path, special: tuple[str, ...] = ("<|im_start|>", "<|im_end|>")) -> Path:
    """A byte-level tokenizer with a few merges, so that joining two texts can change their tokens."""
    vocab = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for left, right in MERGES:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


@pytest.fixture(scope="session")
def write_tokenizer() -> Callable[..., Path]:
    return make_tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> FileTokenizer:
    return FileTokenizer(make_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(scope="session")
def renderer(tokenizer: FileTokenizer) -> ChatMLRenderer:
    return ChatMLRenderer(tokenizer)


@pytest.fixture(scope="session")
def small_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, ...]], Any]:
    """Byte-level tokenizers with a family's special tokens, as Hugging Face's class."""
    from transformers import PreTrainedTokenizerFast

    @cache
    def make(special: tuple[str, ...]) -> Any:
        directory = make_tokenizer(tmp_path_factory.mktemp("small"), special=special)
        return PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))

    return make


@pytest.fixture(scope="session")
def real_tokenizer() -> Callable[[str], Any]:
    return cache(carried_tokenizer)
