"""The run directory and its SQLite database."""

from termrl.store.run import Checkpoint, Place, Run, find_run, list_runs

__all__ = ["Checkpoint", "Place", "Run", "find_run", "list_runs"]
