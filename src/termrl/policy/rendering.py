"""From messages to prompt tokens and back, by the model's family.

Families that `renderers` knows are rendered by it; a tokenizer whose chat template is plain ChatML (or
which has none, but has ChatML's two tokens) by our own renderer; anything else by its chat template, without
a bridge: then every turn is rendered anew and may begin a new segment.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, cast

from termrl.errors import UserError
from termrl.policy.chatml import CHATML_TEMPLATE, TURN_END, TURN_START, ChatMLRenderer
from termrl.policy.families import known_renderer, likely_renderer, renderer_names
from termrl.policy.tokenizer import FileTokenizer, Tokenizer, TokenizerError

_log = logging.getLogger(__name__)


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
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Any = None,
        add_generation_prompt: bool = False,
    ) -> list[int]: ...

    def parse_response(
        self, token_ids: Sequence[int], *, tools: Any = None, prompt_ids: Sequence[int] | None = None
    ) -> ParsedAnswer: ...

    def get_stop_token_ids(self) -> list[int]: ...

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: Sequence[int],
        previous_completion_ids: Sequence[int],
        new_messages: Sequence[Mapping[str, Any]],
        *,
        tools: Any = None,
    ) -> RenderedPrompt | None: ...


PROBE: list[dict[str, str]] = [
    {"role": "user", "content": "first"},
    {"role": "assistant", "content": "answer"},
    {"role": "user", "content": "second"},
]


class UnknownRendererError(UserError):
    """`renderer=` names none that there is, or one that this tokenizer can't be used with."""


@dataclass(frozen=True, slots=True)
class RendererChoice:
    """A renderer and why it is the one: what a run records."""

    renderer: Renderer
    name: str
    keeps_thinking: bool


def make_renderer(
    tokenizer: Tokenizer, model_name: str, *, name: str = "auto", keep_thinking: bool = True
) -> Renderer:
    return choose_renderer(tokenizer, model_name, name=name, keep_thinking=keep_thinking).renderer


def choose_renderer(
    tokenizer: Tokenizer, model_name: str, *, name: str = "auto", keep_thinking: bool = True
) -> RendererChoice:
    """The renderer for this tokenizer: the one asked for by `name`, or the one its model's name asks for.

    With `keep_thinking` earlier thoughts stay in the prompt, which keeps it an extension of what was
    sampled; without, the family's own template decides, and most drop them at every new user message.
    """
    if name != "auto":
        return _by_name(tokenizer, model_name, name, keep_thinking)
    if isinstance(tokenizer, FileTokenizer):
        plain = tokenizer.chat_template == CHATML_TEMPLATE
        if plain or (tokenizer.chat_template is None and _has_chatml_tokens(tokenizer)):
            return RendererChoice(ChatMLRenderer(tokenizer), "chatml", True)
        tokenizer = _with_transformers(tokenizer)
    known = known_renderer(model_name)
    if known is not None:
        return _of_family(tokenizer, model_name, known, keep_thinking)
    if not getattr(tokenizer, "chat_template", None):
        raise TokenizerError(
            f"the tokenizer of {model_name} has no chat template, so its prompts can't be made; "
            "use an instruction-tuned model or add a chat_template to its tokenizer_config.json"
        )
    if _has_chatml_tokens(tokenizer) and fits_template(ChatMLRenderer(tokenizer), tokenizer):
        return RendererChoice(ChatMLRenderer(tokenizer), "chatml", True)
    likely = likely_renderer(model_name)
    if likely is not None:
        with suppress(Exception):  # what it needs of the tokenizer is not there: another family's
            as_template = _of_family(tokenizer, model_name, likely, keep_thinking=False)
            if fits_template(as_template.renderer, tokenizer):
                return _of_family(tokenizer, model_name, likely, keep_thinking)
        _log.warning(
            "%s looks like a model of the %s family, but its chat template is another: prompts are made by "
            "the template, anew every turn. Set renderer=%s if you know better.",
            *(model_name, likely, likely),
        )
    return _by_template(tokenizer)


def fits_template(renderer: Renderer, tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer's own chat template gives, token for token, what the renderer does."""
    apply = cast(Any, tokenizer).apply_chat_template
    try:
        templated = list(apply(PROBE, tokenize=True, add_generation_prompt=True, return_dict=False))
        return templated == list(renderer.render_ids(PROBE, add_generation_prompt=True))
    except Exception:
        # A template that refuses the probe is some other family's, whatever its reason.
        return False


def _by_name(tokenizer: Tokenizer, model_name: str, name: str, keep_thinking: bool) -> RendererChoice:
    if name not in renderer_names():
        raise UnknownRendererError(
            f"there is no renderer '{name}'; there are auto, {', '.join(renderer_names())}."
        )
    if name == "chatml":
        return RendererChoice(ChatMLRenderer(tokenizer), "chatml", True)
    if isinstance(tokenizer, FileTokenizer):
        tokenizer = _with_transformers(tokenizer)
    if name == "default":
        return _by_template(tokenizer)
    try:
        return _of_family(tokenizer, model_name, name, keep_thinking)
    except Exception as error:
        raise UnknownRendererError(
            f"renderer={name} can't be used with the tokenizer of {model_name}: {error}; "
            "leave it out to have the one that fits."
        ) from error


def _of_family(tokenizer: Tokenizer, model_name: str, name: str, keep_thinking: bool) -> RendererChoice:
    from renderers.base import create_renderer
    from renderers.configs import _config_class_for

    # Some families' sizes differ in their defaults, which `renderers` reads off the tokenizer's name.
    tokenizer.name_or_path = model_name
    config = _config_class_for(name)(**({"thinking_retention": "all"} if keep_thinking else {}))
    return RendererChoice(cast(Renderer, create_renderer(tokenizer, config)), name, keep_thinking)


def _by_template(tokenizer: Tokenizer) -> RendererChoice:
    from renderers import DefaultRendererConfig
    from renderers.base import create_renderer

    return RendererChoice(
        cast(Renderer, create_renderer(tokenizer, DefaultRendererConfig())), "default", False
    )


def _has_chatml_tokens(tokenizer: Tokenizer) -> bool:
    found = [tokenizer.convert_tokens_to_ids(token) for token in (TURN_START, TURN_END)]
    return all(isinstance(token, int) and token != tokenizer.unk_token_id for token in found)


def _with_transformers(tokenizer: FileTokenizer) -> Tokenizer:
    from renderers.base import load_tokenizer as load_with_transformers

    return cast(Tokenizer, load_with_transformers(tokenizer.name_or_path))
