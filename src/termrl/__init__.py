"""termrl trains and evaluates open-weight models as terminal agents on Harbor tasks."""

__version__ = "0.1.0"
