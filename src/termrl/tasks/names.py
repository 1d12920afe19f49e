"""Made-up names for files, directories and words, parted once and for all into train and held-out.

A name is two or three syllables (consonant, vowel) with an optional last consonant: 4 to 7 letters.
There is no `e` in the inventory, so that no name is a word of an instruction (file, line, name, remove).
A name's side is a fixed rule on the name itself, so whoever draws only train names (the training tasks, the
maker of the model and of its tokenizer) can never meet a held-out one.
"""

from collections.abc import Callable
from random import Random
from zlib import crc32

CONSONANTS = "bdfklmnprtvz"
VOWELS = "aiou"
LAST_CONSONANTS = "klmnrt"

type NameSource = Callable[[Random], str]
"""What a family draws its names with: `train_name` or `held_out_name`."""


def is_held_out(name: str) -> bool:
    """Whether a name is kept for held-out tasks; about one in four is."""
    return crc32(name.encode()) % 4 == 0


def train_name(rng: Random) -> str:
    """A name that training may see."""
    while is_held_out(name := _any_name(rng)):
        pass
    return name


def held_out_name(rng: Random) -> str:
    """A name that nothing before the evaluation has seen."""
    while not is_held_out(name := _any_name(rng)):
        pass
    return name


def distinct_names(rng: Random, name: NameSource, count: int) -> list[str]:
    """`count` names of which none is part of another, so that a search for one finds only that one."""
    names: list[str] = []
    while len(names) < count:
        candidate = name(rng)
        if not any(candidate in known or known in candidate for known in names):
            names.append(candidate)
    return names


def _any_name(rng: Random) -> str:
    syllables = "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(rng.choice((2, 3))))
    return syllables + rng.choice(LAST_CONSONANTS) if rng.choice((True, False)) else syllables
