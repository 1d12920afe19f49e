"""Names and families: what the tasks and the maker of the model are both drawn from."""

import re
from itertools import pairwise
from random import Random

import pytest

from termrl.tasks import families
from termrl.tasks.families import Family
from termrl.tasks.names import NameSource, distinct_names, held_out_name, is_held_out, train_name


def test_names_are_short_and_lower_case_and_there_are_thousands_of_them() -> None:
    rng = Random(0)
    drawn = {train_name(rng) for _ in range(8000)}
    assert all(re.fullmatch("[a-z]{4,7}", name) for name in drawn)
    assert len(drawn) > 4000


def test_a_train_name_is_never_a_held_out_name() -> None:
    rng = Random(0)
    assert not any(is_held_out(train_name(rng)) for _ in range(2000))
    assert all(is_held_out(held_out_name(rng)) for _ in range(2000))


def test_the_side_of_a_name_never_changes() -> None:
    names = ("kuvo", "tamo", "lirak", "bofi", "zanumit")
    assert [name for name in names if is_held_out(name)] == ["kuvo", "lirak", "bofi"]


def test_distinct_names_are_not_part_of_each_other() -> None:
    for seed in range(200):
        names = distinct_names(Random(seed), train_name, 8)
        assert not any(a in b for a in names for b in names if a is not b)


def test_there_are_fifteen_known_families_and_three_held_out_ones() -> None:
    assert len(families.KNOWN) == 15
    assert len(families.HELD_OUT) == 3
    assert len({family.name for family in families.ALL}) == 18


@pytest.mark.parametrize("family", families.ALL, ids=lambda family: family.name)
def test_a_sample_depends_on_nothing_but_the_generator_state(family: Family) -> None:
    assert family.sample(Random(7), train_name) == family.sample(Random(7), train_name)
    assert family.sample(Random(7), train_name) != family.sample(Random(8), train_name)


@pytest.mark.parametrize("family", families.ALL, ids=lambda family: family.name)
@pytest.mark.parametrize("source", [train_name, held_out_name])
def test_every_word_of_a_task_is_fixed_or_a_name_from_the_source(family: Family, source: NameSource) -> None:
    fixed = _words(f"{family.phrasing} {family.command}") | {"sh", "bin", "echo"}
    for seed in range(50):
        spec = family.sample(Random(seed), source)
        texts = [spec.instruction, spec.command, *spec.files, *spec.files.values()]
        drawn = {word for text in texts for word in _words(text)} - fixed
        assert drawn
        assert {is_held_out(name) for name in drawn} == {source is held_out_name}


@pytest.mark.parametrize("family", families.ALL, ids=lambda family: family.name)
def test_the_parameters_of_a_command_stand_in_the_instruction_between_spaces(family: Family) -> None:
    for seed in range(50):
        spec = family.sample(Random(seed), train_name)
        parameters = _words(spec.command) - _words(family.command)
        assert parameters <= set(spec.instruction.split())


@pytest.mark.parametrize("family", families.ALL, ids=lambda family: family.name)
def test_files_are_a_few_short_lines(family: Family) -> None:
    for seed in range(50):
        for content in family.sample(Random(seed), train_name).files.values():
            assert content.endswith("\n")
            assert 2 <= len(content.splitlines()) <= 9


def test_lines_to_be_sorted_or_reversed_are_in_no_order_yet() -> None:
    for family in families.ALL:
        if family.name not in ("sort-lines", "reverse-lines", "unique-lines"):
            continue
        for seed in range(200):
            (content,) = family.sample(Random(seed), train_name).files.values()
            lines = content.splitlines()
            assert any(a > b for a, b in pairwise(lines))
            assert any(a < b for a, b in pairwise(lines))


def _words(text: str) -> set[str]:
    return set(re.findall("[a-z]+", text))
