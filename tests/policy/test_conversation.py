from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from termrl.policy.chatml import ChatMLRenderer
from termrl.policy.conversation import Conversation
from termrl.policy.tokenizer import FileTokenizer
from termrl.policy.transcript import Turn, segments_of

TEXT = st.text(max_size=20)


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


def play(
    renderer: ChatMLRenderer, conversation: Conversation, history: list[dict[str, str]], exchange: Exchange
) -> Turn:
    """One model call as the agent makes it; `history` grows by what the agent keeps."""
    prompt = conversation.prompt_ids(history, exchange.prompt)
    stop = renderer.get_stop_token_ids()[0]
    sampled = (*exchange.sampled, stop) if exchange.finished else exchange.sampled
    answer = renderer.parse_response(sampled).content
    conversation.answered(history, exchange.prompt, prompt, sampled, answer)
    history += [{"role": "user", "content": exchange.prompt}, {"role": "assistant", "content": answer}]
    return Turn(prompt, sampled, (-0.5,) * len(sampled), 0, "stop" if exchange.finished else "length")


@given(exchanges=EXCHANGES)
def test_whatever_is_sampled_a_conversation_is_one_segment_of_exactly_those_tokens(
    renderer: ChatMLRenderer, exchanges: list[Exchange]
) -> None:
    conversation = Conversation(renderer)
    history: list[dict[str, str]] = []
    turns = [play(renderer, conversation, history, exchange) for exchange in exchanges]
    (segment,) = segments_of(turns)
    assert segment.turns == len(turns)
    kept = [token for token, sampled in zip(segment.tokens, segment.mask, strict=True) if sampled]
    assert kept == [token for turn in turns for token in turn.sampled]
    assert segment.tokens == turns[-1].tokens


@given(exchanges=EXCHANGES, rewritten=TEXT)
def test_a_rewritten_history_is_rendered_anew(
    tokenizer: FileTokenizer, renderer: ChatMLRenderer, exchanges: list[Exchange], rewritten: str
) -> None:
    conversation = Conversation(renderer)
    history: list[dict[str, str]] = []
    for exchange in exchanges:
        play(renderer, conversation, history, exchange)
    history[-1] = {"role": "assistant", "content": history[-1]["content"] + "!"}
    prompt = conversation.prompt_ids(history, "next")
    fresh = Conversation(renderer).prompt_ids(history, "next")
    assert prompt == fresh


def test_an_unwound_history_begins_a_new_segment(renderer: ChatMLRenderer) -> None:
    conversation = Conversation(renderer)
    history: list[dict[str, str]] = []
    turns = [play(renderer, conversation, history, Exchange(text, (72,), True)) for text in ("one", "two")]
    del history[2:]
    turns.append(play(renderer, conversation, history, Exchange("three", (72,), True)))
    turns.append(play(renderer, conversation, history, Exchange("four", (72,), True)))
    assert [segment.turns for segment in segments_of(turns)] == [2, 2]


def test_a_history_that_is_the_stream_is_counted_without_tokenising_it(renderer: ChatMLRenderer) -> None:
    conversation = Conversation(renderer)
    history: list[dict[str, str]] = []
    turn = play(renderer, conversation, history, Exchange("hello", (104, 101), True))
    assert conversation.count_tokens(history) == len(turn.tokens)
    assert conversation.count_tokens([]) == 0
    assert conversation.count_tokens(history[:1]) == len(renderer.render_ids(history[:1]))


def test_a_lone_surrogate_in_a_prompt_is_replaced(tokenizer: FileTokenizer, renderer: ChatMLRenderer) -> None:
    prompt = Conversation(renderer).prompt_ids([], "a\ud800b")
    assert "a?b" in tokenizer.decode(prompt)
