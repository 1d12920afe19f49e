import json
from collections.abc import Callable
from pathlib import Path

import pytest

from termrl.errors import UserError
from termrl.policy.chatml import CHATML_TEMPLATE, ChatMLRenderer
from termrl.policy.conversation import Conversation
from termrl.policy.rendering import make_renderer
from termrl.policy.sampler import SampledAnswer
from termrl.policy.tokenizer import load_tokenizer

QWEN = (
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "</tool_call>"),
    *("<tool_response>", "</tool_response>", "<think>", "</think>"),
)


def with_template(directory: Path, template: str) -> Path:
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "chat_template": template,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


@pytest.mark.parametrize(
    "template",
    [
        CHATML_TEMPLATE,
        "{%- for m in messages -%}<|im_start|>{{ m.role + '\\n' }}{{ m.content }}<|im_end|>{{ '\\n' }}"
        "{%- endfor -%}"
        "{%- if add_generation_prompt -%}<|im_start|>assistant{{ '\\n' }}{%- endif -%}",
    ],
    ids=["as we write it", "written otherwise"],
)
def test_a_plain_chatml_tokenizer_gets_the_renderer_that_bridges(
    tmp_path: Path, write_tokenizer: Callable[..., Path], template: str
) -> None:
    tokenizer = load_tokenizer(with_template(write_tokenizer(tmp_path), template))
    assert isinstance(make_renderer(tokenizer, "some/model"), ChatMLRenderer)


def test_a_family_that_renderers_knows_is_rendered_by_it_and_bridged_over_user_turns(
    tmp_path: Path, write_tokenizer: Callable[..., Path]
) -> None:
    directory = with_template(write_tokenizer(tmp_path, special=QWEN), "{{ 'not used' }}")
    renderer = make_renderer(load_tokenizer(directory), "Qwen/Qwen3-4B-Instruct-2507")
    assert type(renderer).__name__ == "Qwen3Renderer"
    conversation = Conversation(renderer)
    first = {"role": "user", "content": "first"}
    prompt = conversation.prompt([first])
    sampled = (104, 101, renderer.get_stop_token_ids()[0])
    said = {"role": "assistant", "content": conversation.parse(prompt, sampled).content}
    conversation.answered(prompt, SampledAnswer(sampled, (0.0,) * 3, "stop", 0.0), said, 0)
    second = conversation.prompt([first, said, {"role": "user", "content": "second"}])
    assert second.ids()[: prompt.length + 3] == [*prompt.ids(), *sampled]


def test_an_unknown_template_is_rendered_by_itself_without_a_bridge(
    tmp_path: Path, write_tokenizer: Callable[..., Path]
) -> None:
    template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"
    renderer = make_renderer(load_tokenizer(with_template(write_tokenizer(tmp_path), template)), "some/model")
    assert renderer.bridge_to_next_turn([1], [2], [{"role": "user", "content": "x"}]) is None


def test_a_tokenizer_that_says_nothing_about_chats_is_refused(
    tmp_path: Path, write_tokenizer: Callable[..., Path]
) -> None:
    directory = write_tokenizer(tmp_path, special=("<s>",))
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(UserError, match="no chat template"):
        make_renderer(load_tokenizer(directory), "some/model")
