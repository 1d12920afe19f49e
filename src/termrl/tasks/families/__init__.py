"""The families of the built-in dataset `termrl/basics`.

`KNOWN` families have training and held-out tasks; `HELD_OUT` families are never trained on.
`family.sample(rng, name)` draws any number of further tasks; draw training text with `names.train_name` only.
"""

from termrl.tasks.families import making, moving, reading
from termrl.tasks.families.family import Family, TaskSpec

KNOWN: tuple[Family, ...] = (*making.FAMILIES, *moving.FAMILIES, *reading.FAMILIES)
HELD_OUT: tuple[Family, ...] = reading.HELD_OUT_FAMILIES
ALL: tuple[Family, ...] = (*KNOWN, *HELD_OUT)

__all__ = ["ALL", "HELD_OUT", "KNOWN", "Family", "TaskSpec"]
