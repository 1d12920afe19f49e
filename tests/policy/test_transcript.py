import pytest
from hypothesis import given
from hypothesis import strategies as st

from termrl.policy.transcript import Turn, segments_of

IDS = st.lists(st.integers(0, 3), max_size=4).map(tuple)


@st.composite
def transcripts(draw: st.DrawFn) -> list[Turn]:
    """Turns of which some extend the stream and some do not, over so few ids that they often nearly do."""
    turns: list[Turn] = []
    stream: tuple[int, ...] = ()
    for _ in range(draw(st.integers(0, 5))):
        prompt = (stream if draw(st.booleans()) else draw(IDS)) + draw(IDS)
        sampled = draw(IDS)
        turns.append(Turn(prompt, sampled, tuple(float(-i) for i in range(len(sampled))), 0, "stop"))
        stream = turns[-1].tokens
    return turns


@given(turns=transcripts())
def test_segments_hold_every_sampled_token_once_and_in_order(turns: list[Turn]) -> None:
    segments = segments_of(turns)
    tokens = [t for s in segments for t, sampled in zip(s.tokens, s.mask, strict=True) if sampled]
    logprobs = [p for s in segments for p, sampled in zip(s.logprobs, s.mask, strict=True) if sampled]
    assert tokens == [token for turn in turns for token in turn.sampled]
    assert logprobs == [logprob for turn in turns for logprob in turn.logprobs]
    assert sum(segment.turns for segment in segments) == len(turns)


@given(turns=transcripts())
def test_every_turn_saw_exactly_the_tokens_that_come_before_its_answer(turns: list[Turn]) -> None:
    remaining = list(turns)
    for segment in segments_of(turns):
        members, remaining = remaining[: segment.turns], remaining[segment.turns :]
        for turn in members:
            assert segment.tokens[: len(turn.tokens)] == turn.tokens
        assert segment.tokens == members[-1].tokens


def test_a_turn_needs_a_logprob_for_each_sampled_token() -> None:
    with pytest.raises(ValueError, match="2 sampled tokens but 1 logprobs"):
        Turn((1,), (2, 3), (0.0,), 0, "stop")
