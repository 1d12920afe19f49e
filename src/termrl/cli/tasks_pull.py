"""`termrl tasks pull`: fetches a dataset."""

from termrl.cli.arguments import parse
from termrl.cli.tasks_datasets import help_text, pull

__all__ = ["help_text", "run"]


def run(arguments: list[str]) -> int:
    return pull(parse(arguments, words=["DATASET"]).words)
