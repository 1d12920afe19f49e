"""termrl trains and evaluates open-weight models as terminal agents on Harbor tasks."""

import os

__version__ = "0.1.0"

# Read by the libraries when they are imported: none of them reports home or fetches price lists by itself.
os.environ.setdefault("HARBOR_TELEMETRY", "off")
os.environ.setdefault("TINKER_TELEMETRY", "0")
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
