from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from termrl.policy.chatml import ChatMLRenderer
from termrl.policy.conversation import Conversation
from termrl.policy.sampler import SampledAnswer
from termrl.policy.tokenizer import FileTokenizer
from termrl.policy.transcript import Turn, segments_of

TEXT = st.text(max_size=20)
Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class Exchange:
    prompt: str
    sampled: tuple[int, ...]
    finished: bool


EXCHANGES = st.lists(
    st.builds(Exchange, TEXT, st.lists(st.integers(0, 255), max_size=12).map(tuple), st.booleans()),
    min_size=1,
    max_size=5,
)


def play(renderer: ChatMLRenderer, conversation: Conversation, history: Messages, exchange: Exchange) -> Turn:
    """One model call as the agent makes it; `history` grows by what the agent keeps."""
    history.append({"role": "user", "content": exchange.prompt})
    prompt = conversation.prompt(history)
    stop = renderer.get_stop_token_ids()[0]
    sampled = (*exchange.sampled, stop) if exchange.finished else exchange.sampled
    answer = SampledAnswer(sampled, (-0.5,) * len(sampled), "stop" if exchange.finished else "length", 0.0)
    said = {"role": "assistant", "content": conversation.parse(prompt, sampled).content}
    history.append(said)
    return conversation.answered(prompt, answer, said, policy_version=0)


@given(exchanges=EXCHANGES)
def test_whatever_is_sampled_a_conversation_is_one_segment_of_exactly_those_tokens(
    renderer: ChatMLRenderer, exchanges: list[Exchange]
) -> None:
    conversation = Conversation(renderer)
    history: Messages = []
    turns = [play(renderer, conversation, history, exchange) for exchange in exchanges]
    (segment,) = segments_of(turns)
    assert segment.turns == len(turns)
    kept = [token for token, sampled in zip(segment.tokens, segment.mask, strict=True) if sampled]
    assert kept == [token for turn in turns for token in turn.sampled]
    assert segment.tokens == turns[-1].tokens
    assert conversation.transcript.breaks == 0


@given(exchanges=EXCHANGES, rewritten=TEXT)
def test_a_rewritten_history_is_rendered_anew(
    tokenizer: FileTokenizer, renderer: ChatMLRenderer, exchanges: list[Exchange], rewritten: str
) -> None:
    conversation = Conversation(renderer)
    history: Messages = []
    for exchange in exchanges:
        play(renderer, conversation, history, exchange)
    history[0] = {"role": "user", "content": rewritten + "!" + str(history[0]["content"])}
    history.append({"role": "user", "content": "next"})
    assert conversation.prompt(history).ids() == Conversation(renderer).prompt(history).ids()


@given(exchanges=EXCHANGES)
def test_a_harness_that_goes_back_extends_what_was_sampled_then(
    renderer: ChatMLRenderer, exchanges: list[Exchange]
) -> None:
    conversation = Conversation(renderer)
    history: Messages = []
    turns = [play(renderer, conversation, history, exchange) for exchange in exchanges]
    back = [*history[:2], {"role": "user", "content": "something else"}]
    prompt = conversation.prompt(back)
    # Another exchange may have had the same messages in the same place; its tokens are as good.
    assert any(tuple(prompt.ids()[: turn.end]) == turn.tokens for turn in turns)
    again = play(renderer, conversation, history[:2], Exchange("something else", (1, 2), True))
    segments = segments_of(conversation.transcript.turns)
    assert sum(segment.sampled_count for segment in segments) == sum(
        turn.sampled_count for turn in (*turns, again)
    )
    assert [*segments[-1].tokens] == [*again.tokens]


@given(exchanges=EXCHANGES)
def test_counting_a_history_that_is_the_streams_gives_the_streams_length(
    renderer: ChatMLRenderer, exchanges: list[Exchange]
) -> None:
    conversation = Conversation(renderer)
    history: Messages = []
    for exchange in exchanges:
        turn = play(renderer, conversation, history, exchange)
        assert conversation.count_tokens(history) == turn.end
    assert conversation.count_tokens([]) == 0


def test_a_history_with_words_that_nobody_sampled_is_rendered_anew(renderer: ChatMLRenderer) -> None:
    conversation = Conversation(renderer)
    history: Messages = []
    play(renderer, conversation, history, Exchange("one", (1, 2), True))
    history += [{"role": "user", "content": "two"}, {"role": "assistant", "content": "put in by hand"}]
    history.append({"role": "user", "content": "three"})
    assert conversation.prompt(history).ids() == Conversation(renderer).prompt(history).ids()
    assert conversation.prompt(history).after is None


def test_a_lone_surrogate_does_not_break_a_prompt(renderer: ChatMLRenderer, tokenizer: FileTokenizer) -> None:
    prompt = Conversation(renderer).prompt([{"role": "user", "content": "a\ud800b"}])
    assert "a?b" in tokenizer.decode(prompt.ids())
