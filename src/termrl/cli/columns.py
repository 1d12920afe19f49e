"""Rows of text in aligned columns, the last one cut to the terminal's width."""

import shutil
import sys
from collections.abc import Sequence


def print_columns(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[i]) for row in (headers, *rows)) for i in range(len(headers))]
    # A pipe gets whole lines: whoever reads them there has tools to cut them.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for row in (headers, *rows):
        line = "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip()
        print(line[:width])
