from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from termrl.engine.models import BaseModel, load_base_model
from termrl.engine.programs import Key, Programs
from termrl.engine.sampler import Sampler, prepare
from termrl.engine.sequences import Answer, SamplingSettings

PROMPT = np.arange(2, 30, dtype=np.int32)
SETTINGS = SamplingSettings(max_tokens=24, seed=7, stops_at_eos=False)


def test_a_program_is_made_once_beside_the_caller_who_can_wait_for_it() -> None:
    programs, made = Programs(), list[threading.Thread]()
    begun, go = threading.Event(), threading.Event()

    def make() -> str:
        begun.set()
        assert go.wait(30)
        made.append(threading.current_thread())
        return "done"

    for _ in range(3):
        programs.begin(("kind", 1), "a thing", make)
    assert begun.wait(30)
    assert not programs.wait(("kind", 1), 0.01)
    assert programs.status is not None
    assert "compiling a thing" in programs.status
    go.set()
    assert programs.get(("kind", 1)) == "done"
    assert programs.is_ready(("kind", 1))
    assert programs.ready("kind") == [("kind", 1)]
    assert made != [threading.current_thread()]
    assert len(made) == 1


def test_what_someone_waits_for_is_made_before_what_was_begun_for_work_that_is_over() -> None:
    programs, made = Programs(), list[str]()
    begun, go = threading.Event(), threading.Event()
    programs.begin(("kind", "first"), "first", lambda: (begun.set(), go.wait(30)))
    assert begun.wait(30)
    for name in ("one", "two"):
        programs.begin(("kind", name), name, partial(made.append, name))
    programs.begin(("kind", "awaited"), "awaited", partial(made.append, "awaited"), urgent=False)
    assert not programs.wait(("kind", "awaited"), 0.01)
    go.set()
    programs.get(("kind", "one"))
    assert made == ["awaited", "two", "one"]


def test_what_making_a_program_raises_reaches_who_waits_and_it_is_tried_again() -> None:
    programs, tries = Programs(), list[int]()

    def make() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise MemoryError("no room")
        return "done"

    programs.begin(("kind", 1), "a thing", make)
    with pytest.raises(MemoryError, match="no room"):
        programs.get(("kind", 1))
    assert not programs.is_ready(("kind", 1))
    programs.begin(("kind", 1), "a thing", make)
    assert programs.get(("kind", 1)) == "done"


def test_what_is_urgent_is_made_before_what_is_not() -> None:
    programs, order = Programs(), list[str]()
    begun, go = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert go.wait(30)

    programs.begin(("first",), "first", hold)
    assert begun.wait(30)
    for name in ("later", "last"):
        programs.begin((name,), name, partial(order.append, name), urgent=False)
    programs.begin(("urgent",), "urgent", partial(order.append, "urgent"))
    go.set()
    programs.get(("last",))
    assert order == ["urgent", "later", "last"]


def test_answers_go_on_while_a_bigger_shape_is_compiled(
    base: BaseModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first answers never wait for the program that more of them would need."""
    own = load_base_model(base.name)
    hold, begin = threading.Event(), own.programs.begin

    def slow(key: Key, name: str, make: Callable[[], Any], *, urgent: bool = True) -> None:
        def held() -> Any:
            if key[0] == "decode" and key[2].rows > 8:
                assert hold.wait(60)
            return make()

        begin(key, name, held, urgent=urgent)

    monkeypatch.setattr(own.programs, "begin", slow)
    sampler = Sampler(own, own.params)
    prepare(own)
    while not (own.programs.ready("prefill") and own.programs.ready("decode")):
        time.sleep(0.01)
    answers: list[Answer] = []
    for index in range(20):
        sampler.sample(PROMPT, SETTINGS, index, answers.append)
    while len(answers) < 8:
        sampler.step()
    assert not hold.is_set()
    hold.set()
    while sampler.busy:
        sampler.step()
    assert len(answers) == 20
    again = Sampler(own, own.params)
    alone: list[Answer] = []
    again.sample(PROMPT, SETTINGS, 0, alone.append)
    while again.busy:
        again.step()
    assert alone[0].tokens in [answer.tokens for answer in answers]
