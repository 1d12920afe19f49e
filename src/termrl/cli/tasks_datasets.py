"""`termrl tasks datasets`: what is on this machine, where it came from and when; fetching and removing."""

import json
import time

from termrl.cli.arguments import UsageError, parse
from termrl.cli.columns import print_columns
from termrl.cli.fetching import tell


def help_text() -> str:
    return "\n".join(
        [
            "usage: termrl tasks datasets [--json]",
            "       termrl tasks pull DATASET        fetch it, or again what is missing or damaged of it",
            "       termrl tasks remove DATASET      remove it from the cache",
            "",
            "Lists the datasets on this machine: the built-in ones, and those that were fetched to Harbor's",
            "cache, with where they came from, when, how big they are and whether they are still whole.",
        ]
    )


def run(arguments: list[str]) -> int:
    given = parse(arguments, words=["ACTION", "DATASET"], flags=["json"])
    if given.words and given.words[0] in ("pull", "remove"):
        return (pull if given.words[0] == "pull" else remove)(given.words[1:])
    if given.words:
        raise UsageError(f"'{given.words[0]}' is not something this command takes: pull or remove a DATASET.")

    from termrl.tasks.builtin import BUILTIN_DATASETS
    from termrl.tasks.overview import human_size
    from termrl.tasks.records import all_records, harbor_cache, others_in_cache

    rows = [
        {
            "dataset": record.dataset,
            "source": record.source,
            "version": record.version,
            "fetched_at": record.fetched_at,
            "entries": len(record.tasks),
            "size": record.size,
            "damaged": record.missing,
        }
        for record in all_records()
    ]
    others = others_in_cache()
    if "json" in given.flags:
        shown = {"built_in": list(BUILTIN_DATASETS), "fetched": rows, "others": list(map(str, others))}
        print(json.dumps(shown, indent=1))
        return 0
    cells = [[name, "built in", "", "", "", "", ""] for name in BUILTIN_DATASETS if ":" not in name]
    for row, record in zip(rows, all_records(), strict=True):
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(record.fetched_at))
        state = f"{len(record.missing)} damaged: pull it again" if row["damaged"] else "whole"
        size = human_size(record.size)
        cells.append(
            [record.dataset, record.source, record.version[:12], when, str(len(record.tasks)), size, state]
        )
    if others:
        cells.append([str(harbor_cache()), "Harbor itself", "", "", str(len(others)), "", ""])
    print_columns(("dataset", "from", "version", "fetched", "entries", "size", "state"), cells)
    return 0


def pull(words: tuple[str, ...]) -> int:
    if not words:
        raise UsageError("Say which dataset to fetch: termrl tasks pull DATASET.")

    from termrl.tasks.builtin import canonical_builtin
    from termrl.tasks.fetching import fetch
    from termrl.tasks.overview import human_size
    from termrl.tasks.references import read_reference

    if canonical_builtin(words[0]) is not None:
        raise UsageError(f"{words[0]} is built in: there is nothing to fetch.")
    record = fetch(read_reference(words[0]), tell)
    print(f"{record.dataset} is on this machine: {len(record.tasks)} entries, {human_size(record.size)}")
    return 0


def remove(words: tuple[str, ...]) -> int:
    if not words:
        raise UsageError("Say which dataset to remove: termrl tasks remove DATASET.")

    from termrl.tasks.removal import remove_dataset

    removed = remove_dataset(words[0])
    print(f"removed {words[0]}: {removed} entries of the cache")
    return 0
