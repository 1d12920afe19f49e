"""`termrl tasks split`: writes the list that is trained on and the list that is held out."""

import json
from pathlib import Path
from typing import cast

from termrl.cli.arguments import UsageError, parse, whole_number
from termrl.cli.choices import choice, on_bad_task
from termrl.cli.fetching import tell


def help_text() -> str:
    return "\n".join(
        [
            "usage: termrl tasks split DATASET [holdout=0.2] [seed=0] [by=task|category|difficulty]",
            "                          [output_path=.] [on_bad_task=error|skip] [--json]",
            "",
            "Writes two list files, NAME-train.txt and NAME-holdout.txt; `termrl train` has them as dataset",
            "and eval_dataset. by=category and by=difficulty draw the same share from each of them.",
        ]
    )


def run(arguments: list[str]) -> int:
    options = ["holdout", "seed", "by", "output_path", "on_bad_task"]
    given = parse(arguments, words=["DATASET"], options=options, flags=["json"])
    if not given.words:
        raise UsageError("Say which dataset to split: termrl tasks split DATASET.")
    try:
        holdout = float(given.options.get("holdout", "0.2"))
    except ValueError:
        raise UsageError(f"holdout is '{given.options['holdout']}', which is not a number.") from None

    from termrl.tasks.datasets import load_dataset
    from termrl.tasks.splitting import CHOICES, By, write_split

    by = cast(By, choice(given.options, "by", CHOICES))
    seed = whole_number(given.options, "seed", 0)
    directory = Path(given.options.get("output_path", ".")).expanduser()
    found = load_dataset(given.words[0], on_bad_task=on_bad_task(given.options), told=tell)
    lists = write_split(found.tasks, given.words[0], directory, holdout, seed, by)
    if "json" in given.flags:
        sides = {"train": lists.train, "holdout": lists.holdout}
        paths = {"train_path": str(lists.train_path), "holdout_path": str(lists.holdout_path)}
        print(json.dumps({**sides, **paths}, indent=1))
        return 0
    print(f"{len(lists.train)} tasks to train on in {lists.train_path}")
    print(f"{len(lists.holdout)} tasks held out in {lists.holdout_path}")
    print(f"next: termrl train dataset={lists.train_path} eval_dataset={lists.holdout_path}")
    return 0
