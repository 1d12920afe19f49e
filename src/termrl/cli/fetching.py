"""The line that says how far the fetching of a dataset is. To stderr: stdout is for what was asked."""

import sys


def tell(what: str, done: int, total: int | None) -> None:
    """One line on a terminal that is written over; elsewhere a line for each new thing."""
    text = f"{what}: {done} of {total} tasks" if total is not None else what
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\r\x1b[K{text}", end=end, file=sys.stderr, flush=True)
    elif done == 0 or done == total:
        print(text, file=sys.stderr, flush=True)
