"""`termrl tasks remove`: removes a dataset from the cache."""

from termrl.cli.arguments import parse
from termrl.cli.tasks_datasets import remove


def help_text() -> str:
    return "usage: termrl tasks remove DATASET\n\nRemoves a dataset that was fetched from Harbor's cache."


def run(arguments: list[str]) -> int:
    return remove(parse(arguments, words=["DATASET"]).words)
