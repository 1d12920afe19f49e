"""Fixtures that several rooms' tests share: import them into a conftest.py by name."""

from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from scripted_bench import Bench
from termrl.policy.chatml import ChatMLRenderer
from termrl.policy.tokenizer import FileTokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> FileTokenizer:
    """One token a byte: the smallest tokenizer that can say everything."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = FastTokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([AddedToken(token, special=True) for token in ("<|im_start|>", "<|im_end|>")])
    directory = tmp_path_factory.mktemp("tokenizer")
    fast.save(str(directory / "tokenizer.json"))
    return FileTokenizer(directory)


@pytest.fixture(scope="session")
def renderer(tokenizer: FileTokenizer) -> ChatMLRenderer:
    return ChatMLRenderer(tokenizer)


@pytest.fixture
def bench(tmp_path: Path, tokenizer: FileTokenizer) -> Bench:
    return Bench(tmp_path, tokenizer)
