"""Held-out evaluation, intervals, what a run came to.

The room and the public function `termrl.evaluate` have one name, and whichever is imported first takes it in
the package's namespace; so the room can be called as the function.
"""

import sys
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from termrl.api import evaluate

        return evaluate(*args, **kwargs)


sys.modules[__name__].__class__ = _Room
