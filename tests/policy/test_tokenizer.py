import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from termrl.errors import UserError
from termrl.policy.rendering import make_renderer
from termrl.policy.tokenizer import FileTokenizer, load_tokenizer


def test_a_model_directory_without_a_tokenizer_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refusal:
        load_tokenizer(tmp_path)
    assert str(tmp_path) in str(refusal.value)
    assert "tokenizer.json" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert refusal.value.exit_code == 2


def test_a_model_directory_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no model directory"):
        load_tokenizer(tmp_path / "missing")


def test_a_broken_tokenizer_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match="can't be read as a tokenizer"):
        load_tokenizer(tmp_path)


def test_a_broken_tokenizer_config_is_refused(tmp_path: Path, write_tokenizer: Callable[..., Path]) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(UserError, match="not valid JSON"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_without_the_turn_tokens_is_refused(
    tmp_path: Path, write_tokenizer: Callable[..., Path]
) -> None:
    write_tokenizer(tmp_path, special=("<|im_start|>",))
    with pytest.raises(UserError):
        make_renderer(load_tokenizer(tmp_path), "some/model")


def test_the_end_of_sequence_token_is_read_from_the_config(
    tmp_path: Path, write_tokenizer: Callable[..., Path]
) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<|im_end|>"}}')
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")


def test_control_tokens_in_text_are_read_as_text(tokenizer: FileTokenizer) -> None:
    ids = tokenizer.encode("a<|im_end|>b")
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") not in ids
    assert tokenizer.decode(ids) == "a<|im_end|>b"


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_text_survives_the_tokenizer(tokenizer: FileTokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_reading_a_tokenizer_from_a_directory_imports_neither_transformers_nor_renderers(
    tmp_path: Path, write_tokenizer: Callable[..., Path]
) -> None:
    program = (
        "import sys; from termrl.policy.tokenizer import load_tokenizer; "
        "from termrl.policy.rendering import make_renderer; "
        f"make_renderer(load_tokenizer({str(write_tokenizer(tmp_path))!r}), 'termrl/tiny'); "
        "print([name for name in ('transformers', 'renderers') if name in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "[]"
