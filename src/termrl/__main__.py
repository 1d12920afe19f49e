"""`python -m termrl` is the command `termrl`."""

import sys

from termrl.cli import main

sys.exit(main())
