"""Families that read a file and write what they found to another, or change the file in place.

Contents are drawn so that the commands of sibling families give different results: a file to be sorted is
neither sorted nor reversed already, and a line to be found is not all there is.
"""

from random import Random

from termrl.tasks.families.family import Family, Scene, draw, holds, text
from termrl.tasks.names import NameSource


def _result(file: str, result: str, content: str, expected: str) -> Scene:
    return Scene(
        {"file": file, "result": result},
        (holds(file, content), holds(result, expected)),
        {file: content},
    )


def _unordered(rng: Random, name: NameSource) -> tuple[str, str, list[str]]:
    """A file, a result and lines in neither ascending nor descending order."""
    (file, result), lines = draw(rng, name, 2)
    while lines in (sorted(lines), sorted(lines, reverse=True)):
        rng.shuffle(lines)
    return file, result, lines


def _count(rng: Random, name: NameSource) -> Scene:
    # More lengths than elsewhere, so that guessing the number seldom pays.
    (file, result), lines = draw(rng, name, 2, lines=rng.randint(3, 9))
    return _result(file, result, text(lines), f"{len(lines)}\n")


def _sort(rng: Random, name: NameSource) -> Scene:
    file, result, lines = _unordered(rng, name)
    return _result(file, result, text(lines), text(sorted(lines)))


def _first(rng: Random, name: NameSource) -> Scene:
    file, result, lines = _unordered(rng, name)
    return _result(file, result, text(lines), text(lines[:1]))


def _last(rng: Random, name: NameSource) -> Scene:
    file, result, lines = _unordered(rng, name)
    return _result(file, result, text(lines), text(lines[-1:]))


def _reverse(rng: Random, name: NameSource) -> Scene:
    file, result, lines = _unordered(rng, name)
    return _result(file, result, text(lines), text(lines[::-1]))


def _unique(rng: Random, name: NameSource) -> Scene:
    (file, result), lines = draw(rng, name, 2, lines=rng.randint(3, 4))
    repeated = [*lines, *rng.sample(lines, 2)]
    while repeated in (sorted(repeated), sorted(repeated, reverse=True)):
        rng.shuffle(repeated)
    return _result(file, result, text(repeated), text(sorted(lines)))


def _find(rng: Random, name: NameSource) -> Scene:
    (file, result, word), firsts = draw(rng, name, 3, lines=rng.randint(4, 6))
    wanted = set(rng.sample(range(len(firsts)), rng.choice((2, 3))))
    lines = [f"{first} {word}" if i in wanted else f"{first} {first}" for i, first in enumerate(firsts)]
    found = [line for line in lines if word in line]
    scene = _result(file, result, text(lines), text(found))
    return Scene({**scene.parameters, "word": word}, scene.checks, scene.files)


def _replace(rng: Random, name: NameSource) -> Scene:
    (file, old, new), lines = draw(rng, name, 3)
    lines.insert(rng.randint(0, len(lines)), old)
    replaced = [new if line == old else line for line in lines]
    return Scene({"file": file, "old": old, "new": new}, (holds(file, text(replaced)),), {file: text(lines)})


FAMILIES = (
    Family(
        "count-lines",
        "text",
        "medium",
        "Count the lines of the file {file} and write the number to {result}",
        "wc -l < {file} > {result}",
        _count,
    ),
    Family(
        "sort-lines",
        "text",
        "medium",
        "Sort the lines of the file {file} and write them to {result}",
        "sort {file} > {result}",
        _sort,
    ),
    Family(
        "first-line",
        "text",
        "medium",
        "Write the first line of the file {file} to {result}",
        "head -n 1 {file} > {result}",
        _first,
    ),
    Family(
        "find-lines",
        "text",
        "medium",
        "Find the lines with the word {word} in the file {file} and write them to {result}",
        "grep {word} {file} > {result}",
        _find,
    ),
    Family(
        "replace-word",
        "text",
        "medium",
        "Replace the word {old} with {new} in the file {file}",
        "sed -i s/{old}/{new}/ {file}",
        _replace,
    ),
)

HELD_OUT_FAMILIES = (
    Family(
        "last-line",
        "text",
        "medium",
        "Write the last line of the file {file} to {result}",
        "tail -n 1 {file} > {result}",
        _last,
    ),
    Family(
        "reverse-lines",
        "text",
        "medium",
        "Write the lines of the file {file} in reverse order to {result}",
        "tac {file} > {result}",
        _reverse,
    ),
    Family(
        "unique-lines",
        "text",
        "medium",
        "Sort the lines of the file {file} without repeats and write them to {result}",
        "sort -u {file} > {result}",
        _unique,
    ),
)
