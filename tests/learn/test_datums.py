import numpy as np
import tinker

from termrl.learn.datums import rollout_lessons, supervised_datum
from termrl.policy.transcript import Turn, segments_of


def turn(prompt: list[int], sampled: list[int], logprobs: list[float]) -> Turn:
    return Turn(tuple(prompt), tuple(sampled), tuple(logprobs), 0, "stop")


def values(datum: tinker.Datum, name: str) -> list[float]:
    return [float(value) for value in np.asarray(datum.loss_fn_inputs[name].to_numpy())]


TURNS = [
    turn([1, 2, 3], [10, 11], [-0.5, -0.25]),
    turn([1, 2, 3, 10, 11, 20], [30], [-1]),
    turn([7, 8], [9], [-2]),
]


def test_prefix_merging_matches_the_reference_vectors() -> None:
    first, second = (lesson.datum() for lesson in rollout_lessons(TURNS, 0.5))
    assert first.model_input.to_ints() == [1, 2, 3, 10, 11, 20]
    assert values(first, "target_tokens") == [2, 3, 10, 11, 20, 30]
    assert values(first, "logprobs") == [0, 0, -0.5, -0.25, 0, -1]
    assert values(first, "advantages") == [0, 0, 0.5, 0.5, 0, 0.5]
    assert second.model_input.to_ints() == [7, 8]
    assert values(second, "target_tokens") == [8, 9]
    assert values(second, "logprobs") == [0, -2]
    assert values(second, "advantages") == [0, 0.5]


def test_supervision_weighs_what_was_said_and_nothing_else() -> None:
    first, second = (supervised_datum(segment) for segment in segments_of(TURNS))
    assert values(first, "weights") == [0, 0, 1, 1, 0, 1]
    assert values(second, "weights") == [0, 1]


def test_training_tokens_grow_with_the_conversation_not_with_its_square() -> None:
    def tokens(turn_count: int) -> int:
        turns: list[Turn] = []
        stream: list[int] = []
        for _ in range(turn_count):
            turns.append(turn([*stream, 1, 2, 3], [4, 5], [0, 0]))
            stream = list(turns[-1].tokens)
        return sum(lesson.length for lesson in rollout_lessons(turns, 1.0))

    assert tokens(100) <= 2.2 * tokens(50)
