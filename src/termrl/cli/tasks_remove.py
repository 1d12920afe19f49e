"""`termrl tasks remove`: removes a dataset from the cache."""

from termrl.cli.arguments import parse
from termrl.cli.tasks_datasets import help_text, remove

__all__ = ["help_text", "run"]


def run(arguments: list[str]) -> int:
    return remove(parse(arguments, words=["DATASET"]).words)
