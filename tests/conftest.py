"""What all rooms' tests share: nothing is asked of the internet, and how long an example takes says nothing
on a machine that is shared."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

from hypothesis import settings

settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")
