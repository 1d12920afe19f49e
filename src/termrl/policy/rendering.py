"""From messages to prompt tokens and back, by the model's family.

Families that `renderers` knows by name are rendered by it; a tokenizer whose chat template is plain
ChatML (or which has none, but has ChatML's two tokens) by our own renderer; anything else by its chat
template, without a bridge: then every turn is rendered anew and may begin a new segment.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from termrl.policy.chatml import CHATML_TEMPLATE, TURN_END, TURN_START, ChatMLRenderer
from termrl.policy.tokenizer import FileTokenizer, Tokenizer, TokenizerError


class RenderedPrompt(Protocol):
    @property
    def token_ids(self) -> list[int]: ...


class ParsedAnswer(Protocol):
    @property
    def content(self) -> str: ...

    @property
    def reasoning_content(self) -> str | None: ...


class Renderer(Protocol):
    """The part of `renderers.Renderer` that is used here."""

    def render_ids(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = False
    ) -> list[int]: ...

    def parse_response(
        self, token_ids: Sequence[int], *, prompt_ids: Sequence[int] | None = None
    ) -> ParsedAnswer: ...

    def get_stop_token_ids(self) -> list[int]: ...

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: Sequence[int],
        previous_completion_ids: Sequence[int],
        new_messages: Sequence[Mapping[str, Any]],
    ) -> RenderedPrompt | None: ...


PROBE: list[dict[str, str]] = [
    {"role": "user", "content": "first"},
    {"role": "assistant", "content": "answer"},
    {"role": "user", "content": "second"},
]


def make_renderer(tokenizer: Tokenizer, model_name: str) -> Renderer:
    """The renderer for this tokenizer; `model_name` is the name `renderers` may know the family by."""
    if isinstance(tokenizer, FileTokenizer):
        if tokenizer.chat_template == CHATML_TEMPLATE:
            return ChatMLRenderer(tokenizer)
        if tokenizer.chat_template is None and _has_chatml_tokens(tokenizer):
            return ChatMLRenderer(tokenizer)
        tokenizer = _with_transformers(tokenizer)
    return _by_family(tokenizer, model_name)


def _by_family(tokenizer: Tokenizer, model_name: str) -> Renderer:
    from renderers import AutoRendererConfig, DefaultRendererConfig
    from renderers.base import MODEL_RENDERER_MAP, create_renderer

    tokenizer.name_or_path = model_name
    if model_name in MODEL_RENDERER_MAP:
        # The agent's every turn is a user's message, at which the templates of thinking models drop earlier
        # thoughts; keeping them keeps the prompt an extension of what was sampled.
        return cast(Renderer, create_renderer(tokenizer, AutoRendererConfig(thinking_retention="all")))
    if not getattr(tokenizer, "chat_template", None):
        raise TokenizerError(
            f"the tokenizer of {model_name} has no chat template, so its prompts can't be made; "
            "use an instruction-tuned model or add a chat_template to its tokenizer_config.json"
        )
    if _has_chatml_tokens(tokenizer) and _is_plain_chatml(tokenizer):
        return ChatMLRenderer(tokenizer)
    return cast(Renderer, create_renderer(tokenizer, DefaultRendererConfig()))


def _has_chatml_tokens(tokenizer: Tokenizer) -> bool:
    found = [tokenizer.convert_tokens_to_ids(token) for token in (TURN_START, TURN_END)]
    return all(isinstance(token, int) and token != tokenizer.unk_token_id for token in found)


def _is_plain_chatml(tokenizer: Tokenizer) -> bool:
    """Whether the chat template gives, token for token, what our ChatML does."""
    apply = cast(Any, tokenizer).apply_chat_template
    try:
        templated = list(apply(PROBE, tokenize=True, add_generation_prompt=True, return_dict=False))
    except Exception:
        # A template that refuses the probe is some other family's, whatever its reason.
        return False
    return templated == ChatMLRenderer(tokenizer).render_ids(PROBE, add_generation_prompt=True)


def _with_transformers(tokenizer: FileTokenizer) -> Tokenizer:
    from renderers.base import load_tokenizer as load_with_transformers

    return cast(Tokenizer, load_with_transformers(tokenizer.name_or_path))
