"""Families that copy, rename, delete, mark or pack what is there already."""

from random import Random

from termrl.tasks.families.family import Family, Scene, draw, holds, text
from termrl.tasks.names import NameSource


def _copy(rng: Random, name: NameSource) -> Scene:
    (source, target), lines = draw(rng, name, 2)
    content = text(lines)
    # A second name for the same file is not a copy. Links are counted, since an overlay filesystem may give
    # two names of one file different inode numbers, which is what -ef compares.
    checks = (holds(source, content), holds(target, content), f"[[ $(stat -c %h {target}) == 1 ]]")
    return Scene({"source": source, "target": target}, checks, {source: content})


def _rename(rng: Random, name: NameSource) -> Scene:
    (source, target), lines = draw(rng, name, 2)
    content = text(lines)
    return Scene(
        {"source": source, "target": target},
        (f"absent {source}", holds(target, content)),
        {source: content},
    )


def _delete(rng: Random, name: NameSource) -> Scene:
    (doomed, *others), lines = draw(rng, name, 3)
    content = text(lines)
    return Scene(
        {"file": doomed},
        (f"absent {doomed}", *(holds(other, content) for other in others)),
        {file: content for file in (doomed, *others)},
    )


def _executable(rng: Random, name: NameSource) -> Scene:
    (file,), (word,) = draw(rng, name, 1, lines=1)
    content = f"#!/bin/sh\necho {word}\n"
    return Scene({"file": file}, (holds(file, content), f"[[ -x {file} ]]"), {file: content})


def _pack(rng: Random, name: NameSource) -> Scene:
    (directory, archive, first, second), lines = draw(rng, name, 4)
    files = {f"{directory}/{first}": text(lines), f"{directory}/{second}": text(lines[:2])}
    checks = (
        *(holds(path, content) for path, content in files.items()),
        f"[[ -f {archive} ]]",
        f'unpacked=$(mktemp -d) && tar -xf {archive} -C "$unpacked"',
        *(holds(f'"$unpacked"/{path}', content) for path, content in files.items()),
        f'all=("$unpacked"/* "$unpacked"/{directory}/*) && [[ ${{#all[@]}} == 3 ]]',
    )
    return Scene({"directory": directory, "archive": archive}, checks, files)


FAMILIES = (
    Family("copy-file", "files", "easy", "Copy the file {source} to {target}", "cp {source} {target}", _copy),
    Family(
        "rename-file",
        "files",
        "easy",
        "Rename the file {source} to {target}",
        "mv {source} {target}",
        _rename,
    ),
    Family("delete-file", "files", "easy", "Delete the file {file}", "rm {file}", _delete),
    Family(
        "make-executable",
        "permissions",
        "easy",
        "Make the file {file} executable",
        "chmod +x {file}",
        _executable,
    ),
    Family(
        "pack-directory",
        "archives",
        "medium",
        "Pack the directory {directory} into the tar file {archive}",
        "tar -cf {archive} {directory}",
        _pack,
    ),
)
