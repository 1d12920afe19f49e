"""Families that make something where nothing was, or add to what is there."""

from random import Random

from termrl.tasks.families.family import Family, Scene, draw, holds, text
from termrl.tasks.names import NameSource


def _directory(rng: Random, name: NameSource) -> Scene:
    (new,), _ = draw(rng, name, 1, lines=0)
    return Scene({"new": new}, (f"[[ -d {new} && ! -L {new} ]]",))


def _empty_file(rng: Random, name: NameSource) -> Scene:
    (new,), _ = draw(rng, name, 1, lines=0)
    return Scene({"new": new}, (holds(new, ""),))


def _word(rng: Random, name: NameSource) -> Scene:
    (word, file), _ = draw(rng, name, 2, lines=0)
    return Scene({"word": word, "file": file}, (holds(file, f"{word}\n"),))


def _one_more_word(rng: Random, name: NameSource) -> Scene:
    (word, file), lines = draw(rng, name, 2)
    return Scene({"word": word, "file": file}, (holds(file, text([*lines, word])),), {file: text(lines)})


def _link(rng: Random, name: NameSource) -> Scene:
    (file, link), lines = draw(rng, name, 2)
    return Scene(
        {"file": file, "link": link},
        (f"[[ -L {link} && {link} -ef {file} ]]", holds(file, text(lines))),
        {file: text(lines)},
    )


FAMILIES = (
    Family("make-directory", "files", "easy", "Create a directory named {new}", "mkdir {new}", _directory),
    Family("make-file", "files", "easy", "Create an empty file named {new}", "touch {new}", _empty_file),
    Family(
        "write-word",
        "files",
        "easy",
        "Write the word {word} to the file {file}",
        "echo {word} > {file}",
        _word,
    ),
    Family(
        "append-word",
        "files",
        "easy",
        "Append the word {word} to the file {file}",
        "echo {word} >> {file}",
        _one_more_word,
    ),
    Family(
        "link-file",
        "files",
        "easy",
        "Make a symbolic link to the file {file} named {link}",
        "ln -s {file} {link}",
        _link,
    ),
)
