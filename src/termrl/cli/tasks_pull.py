"""`termrl tasks pull`: fetches a dataset."""

from termrl.cli.arguments import parse
from termrl.cli.tasks_datasets import pull


def help_text() -> str:
    return (
        "usage: termrl tasks pull DATASET\n\n"
        "Fetches a dataset to Harbor's cache, or again what is missing or damaged of it."
    )


def run(arguments: list[str]) -> int:
    return pull(parse(arguments, words=["DATASET"]).words)
