import os
import subprocess
import sys

QUIET = {"HARBOR_TELEMETRY": "off", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}


def run_program(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **QUIET},
    )
    return done.stdout.strip()


def test_importing_the_agent_does_not_import_litellm() -> None:
    program = "import sys, termrl.agents.terminus; print('litellm' in sys.modules)"
    assert run_program(program) == "False"


def test_a_stock_terminus_2_in_the_same_process_still_gets_the_real_litellm() -> None:
    program = (
        "import sys, tempfile, pathlib, termrl.agents.terminus\n"
        "from harbor.agents.terminus_2.terminus_2 import Terminus2\n"
        "agent = Terminus2(logs_dir=pathlib.Path(tempfile.mkdtemp()), model_name='openai/gpt-4o')\n"
        "from harbor.llms.lite_llm import LiteLLM\n"
        "print(type(agent._llm) is LiteLLM, 'litellm' in sys.modules)"
    )
    assert run_program(program) == "True True"
