"""Token-exactness for every renderer that ships, with real tokenizers where a package carries one."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from termrl.policy.conversation import Conversation, Message
from termrl.policy.families import known_renderer, likely_renderer, renderer_names
from termrl.policy.rendering import Renderer, choose_renderer
from termrl.policy.sampler import SampledAnswer
from termrl.policy.transcript import Turn, segments_of

CHATML = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
THINK = ("<think>", "</think>")
TOOLS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
QWEN = (*CHATML, *THINK, *TOOLS, *VISION)
GLM = (
    *("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>"),
    *(*THINK, *TOOLS, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)
KIMI = (
    *("<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|im_end|>", "<|endoftext|>"),
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", *THINK),
    *("<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|media_begin|>", "<|media_content|>"),
    *("<|media_pad|>", "<|media_end|>"),
)
DEEPSEEK = (
    *("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", *THINK),
    *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
    *("<｜tool▁sep｜>", "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>"),
    *("<｜tool▁output▁end｜>", "<｜action｜>", "<｜authority｜>", "<｜domain｜>", "<｜latest_reminder｜>"),
    *("<｜query｜>", "<｜read_url｜>", "<｜title｜>", "｜DSML｜"),
)
LAGUNA = ("〈|EOS|〉", *THINK, "<assistant>", "</assistant>", "<tool_call>", "</tool_call>")
HY3 = tuple(
    f"<{name}:opensource{end}>"
    for name, end in [
        *(
            ("｜hy_begin_of_sentence", "｜"),
            ("｜hy_eos", "｜"),
            ("｜hy_User", "｜"),
            ("｜hy_Assistant", "｜"),
        ),
        *(("｜reasoning_mode", "｜"), ("think", ""), ("/think", ""), ("tool_sep", "")),
        *((f"{close}{part}", "") for part in ("tool_calls", "tool_call", "arg_key") for close in ("", "/")),
        *((f"{close}{part}", "") for part in ("arg_value", "tool_responses") for close in ("", "/")),
        *((f"{close}tool_response", "") for close in ("", "/")),
    ]
)
SMALL: dict[str, tuple[str, ...]] = {
    "chatml": CHATML,
    "deepseek-r1": DEEPSEEK,
    "deepseek-v3": DEEPSEEK,
    "deepseek-v4": DEEPSEEK,
    "gemma4": (
        *("<bos>", "<eos>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>", "<|tool>"),
        *("<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", "<|image>"),
        *("<|image|>", "<image|>"),
    ),
    "glm-4.5": GLM,
    "glm-5": GLM,
    "glm-5.1": GLM,
    "glm-5.3": GLM,
    "hy3": HY3,
    "inkling": (
        *("<|message_user|>", "<|message_model|>", "<|message_system|>", "<|message_tool|>"),
        *("<|content_text|>", "<|content_thinking|>", "<|content_image|>", "<|content_audio_input|>"),
        *("<|content_xml|>", "<|content_invoke_tool_json|>", "<|content_invoke_tool_text|>"),
        *("<|content_model_end_sampling|>", "<|end_message|>", "<|audio_end|>", "<|unused_200054|>"),
        *("<|unused_200053|>", "<|endoftext|>"),
    ),
    "kimi-k2": KIMI,
    "kimi-k2.5": KIMI,
    "laguna-m.1": LAGUNA,
    "laguna-s-2.1": LAGUNA,
    "laguna-xs-2.1": LAGUNA,
    "laguna-xs.2": LAGUNA,
    "llama-3": (
        *("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|end_of_text|>"),
        "<|eom_id|>",
    ),
    "minimax-m2": ("]~!b[", "]~b]", "[e~[", *THINK, "<minimax:tool_call>", "</minimax:tool_call>"),
    "nemotron-3": (*CHATML, *THINK, *TOOLS, "<image>"),
    "nemotron-3-ultra": (*CHATML, *THINK, *TOOLS, "<image>"),
    "nemotron-3.5": (*CHATML, *THINK, *TOOLS, "<image>"),
    "prime-qwen3": QWEN,
    "qwen3": QWEN,
    "qwen3-vl": QWEN,
    "qwen3.5": QWEN,
    "qwen3.6": QWEN,
    "qwen3.8": QWEN,
}
REAL = {
    "smollm2": ("chatml", "HuggingFaceTB/SmolLM2-135M-Instruct"),
    "qwen": ("qwen3", "Qwen/Qwen3-8B"),
    "gpt-oss": ("gpt-oss", "openai/gpt-oss-20b"),
}
MODELS = {
    "Qwen/Qwen3-32B": "qwen3",
    "Qwen/Qwen3-235B-A22B-Instruct-2507": "qwen3",
    "Qwen/Qwen3.5-27B": "qwen3.5",
    "Qwen/Qwen3.6-27B": "qwen3.6",
    "Qwen/Qwen3.8-27B": "qwen3.8",
    "Qwen/Qwen3-VL-235B-A22B-Instruct": "qwen3-vl",
    "moonshotai/Kimi-K2-Thinking": "kimi-k2",
    "moonshotai/Kimi-K2.5": "kimi-k2.5",
    "moonshotai/Kimi-K2.6": "kimi-k2.5",
    "openai/gpt-oss-120b": "gpt-oss",
    "deepseek-ai/DeepSeek-V3.1": "deepseek-v3",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3",
    "meta-llama/Llama-3.3-70B-Instruct": "llama-3",
    "zai-org/GLM-4.5-Air": "glm-4.5",
    "zai-org/GLM-5.1": "glm-5.1",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "nemotron-3",
    "some/other-model": None,
}


class Said:
    """A conversation as a harness drives it, with everything that went to and came from the sampler."""

    def __init__(self, renderer: Renderer, tokenizer: Any, seed: int) -> None:
        self.renderer = renderer
        self.tokenizer = tokenizer
        self.random = random.Random(seed)
        self.conversation = Conversation(renderer)
        self.history: list[Message] = []
        self.sent: list[list[int]] = []
        self.sampled: list[tuple[int, ...]] = []

    def exchange(self, question: str, answer: str, *, cut: bool) -> Turn:
        self.history.append({"role": "user", "content": question})
        prompt = self.conversation.prompt(self.history)
        self._same_as_bridging_the_whole_stream(prompt)
        ids = self.tokenizer.encode(answer, add_special_tokens=False)
        stops = self.renderer.get_stop_token_ids()
        ids = [token for token in ids if token not in stops]
        tokens = tuple(ids if cut else [*ids, self.random.choice(stops)])
        self.sent.append(prompt.ids())
        self.sampled.append(tokens)
        content = self.conversation.parse(prompt, tokens).content
        said = {"role": "assistant", "content": content}
        self.history.append(said)
        sampled = SampledAnswer(
            tokens, tuple(-float(i) for i in range(len(tokens))), "length" if cut else "stop", 0.0
        )
        return self.conversation.answered(prompt, sampled, said, policy_version=0)

    def rewrite(self, text: str) -> None:
        if self.history:
            self.history[self.random.randrange(len(self.history))] = {"role": "user", "content": text}

    def _same_as_bridging_the_whole_stream(self, prompt: Any) -> None:
        if prompt.after is None:
            return
        turn = prompt.after.turn
        whole = self.renderer.bridge_to_next_turn(
            list(turn.prompt), list(turn.sampled), list(prompt.messages)
        )
        assert whole is not None
        assert list(whole.token_ids) == prompt.ids()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["exchange", "cut", "rewrite", "exchange"]),
        st.text(max_size=12),
        st.text(max_size=12),
    ),
    min_size=1,
    max_size=6,
)


def check(renderer: Renderer, tokenizer: Any, steps: list[tuple[str, str, str]], seed: int) -> None:
    said = Said(renderer, tokenizer, seed)
    for kind, question, answer in steps:
        if kind == "rewrite":
            said.rewrite(question)
        else:
            said.exchange(question, answer, cut=kind == "cut")
    turns = said.conversation.transcript.turns
    assert [list(turn.prompt) for turn in turns] == said.sent
    assert [turn.sampled for turn in turns] == said.sampled
    segments = segments_of(turns)
    marked = [t for s in segments for t, was in zip(s.tokens, s.mask, strict=True) if was]
    assert marked == [token for tokens in said.sampled for token in tokens]
    kept = [p for s in segments for p, was in zip(s.logprobs, s.mask, strict=True) if was]
    assert kept == [p for turn in turns for p in turn.logprobs]
    at = 0
    for segment in segments:
        last = at + segment.turns - 1
        assert list(segment.tokens) == [*said.sent[last], *said.sampled[last]]
        at = last + 1
    assert len(segments) <= 1 + said.conversation.transcript.breaks


@pytest.mark.parametrize("name", sorted(SMALL))
def test_segments_are_what_was_sent_and_sampled_in_every_family(name: str, small_tokenizer: Any) -> None:
    tokenizer = small_tokenizer(SMALL[name])
    renderer = choose_renderer(tokenizer, "some/model", name=name).renderer

    @settings(max_examples=25)
    @given(steps=STEPS, seed=st.integers(0, 1000))
    def in_this_family(steps: list[tuple[str, str, str]], seed: int) -> None:
        check(renderer, tokenizer, steps, seed)

    in_this_family()


@pytest.mark.parametrize("carrier", sorted(REAL))
def test_segments_are_what_was_sent_and_sampled_with_real_tokenizers(
    carrier: str, real_tokenizer: Any
) -> None:
    name, model = REAL[carrier]
    tokenizer = real_tokenizer(carrier)
    renderer = choose_renderer(tokenizer, model, name=name).renderer

    @settings(max_examples=25)
    @given(steps=STEPS, seed=st.integers(0, 1000))
    def with_this_tokenizer(steps: list[tuple[str, str, str]], seed: int) -> None:
        check(renderer, tokenizer, steps, seed)

    with_this_tokenizer()


@pytest.mark.parametrize("name", sorted(SMALL))
def test_an_undisturbed_conversation_of_finished_answers_is_one_segment(
    name: str, small_tokenizer: Any
) -> None:
    tokenizer = small_tokenizer(SMALL[name])
    renderer = choose_renderer(tokenizer, "some/model", name=name).renderer
    said = Said(renderer, tokenizer, seed=0)
    # What ends an answer differs: GLM's next role, everyone else's first stop token.
    stops = renderer.get_stop_token_ids()
    said.random.choice = lambda _: stops[1] if name.startswith("glm") else stops[0]  # type: ignore[method-assign, assignment]
    thought = "thought</think>" if "</think>" in SMALL[name] else ""
    if thought and not prompts_to_think(renderer, tokenizer):
        thought = f"<think>{thought}"
    for number in range(4):
        said.exchange(f"question {number}", f"{thought}answer {number}", cut=False)
    assert said.conversation.transcript.breaks == 0, f"{name} does not bridge"


def prompts_to_think(renderer: Renderer, tokenizer: Any) -> bool:
    """Whether the family's prompt opens a thought that the answer has to close."""
    ids = renderer.render_ids([{"role": "user", "content": "x"}], add_generation_prompt=True)
    return "<think>" in tokenizer.decode(ids[-4:]) and "</think>" not in tokenizer.decode(ids[-4:])


def test_every_renderer_that_ships_is_tested_here() -> None:
    real = {name for name, _ in REAL.values()}
    assert set(renderer_names()) - {"default"} == set(SMALL) | real


@pytest.mark.parametrize("model", sorted(MODELS))
def test_a_models_name_asks_for_its_familys_renderer(model: str) -> None:
    assert (known_renderer(model) or likely_renderer(model)) == MODELS[model]
