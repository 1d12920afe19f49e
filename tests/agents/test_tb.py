"""The same policy under the older Terminal-Bench command line, whole: part of `make test-all`."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import docker_engine
from checkpoints import MODEL, ask, engine_in, trained
from termrl.agents.terminus_tinker import TerminusTinker, UnknownAgentKwarg

TB = Path(sys.executable).parent / "tb"
LONGEST = 200
SUMMARY = "=========================== short test summary info ============================"
FILES = {
    "task.yaml": (
        "instruction: Write hello into /app/hello.txt\ndifficulty: easy\nparser_name: pytest\n"
        "max_agent_timeout_sec: 240\nmax_test_timeout_sec: 60\ndisable_asciinema: true\n"
    ),
    "docker-compose.yaml": (
        "services:\n  client:\n    build:\n      dockerfile: Dockerfile\n"
        "    image: ${T_BENCH_TASK_DOCKER_CLIENT_IMAGE_NAME}\n"
        "    container_name: ${T_BENCH_TASK_DOCKER_CLIENT_CONTAINER_NAME}\n"
        '    command: [ "sh", "-c", "sleep infinity" ]\n    stop_grace_period: 0s\n'
        "    environment:\n      - TEST_DIR=${T_BENCH_TEST_DIR}\n"
        "    volumes:\n      - ${T_BENCH_TASK_LOGS_PATH}:${T_BENCH_CONTAINER_LOGS_PATH}\n"
        "      - ${T_BENCH_TASK_AGENT_LOGS_PATH}:${T_BENCH_CONTAINER_AGENT_LOGS_PATH}\n"
    ),
    "run-tests.sh": f"echo '{SUMMARY}'\n. $TEST_DIR/check.sh\n",
    "tests/check.sh": (
        'said=FAILED; [ "$(cat /app/hello.txt 2>/dev/null)" = hello ] && said=PASSED\n'
        "echo $said test_outputs.py::test_says_hello\n"
    ),
    "solution.sh": "echo hello > /app/hello.txt\n",
}


@pytest.mark.docker
@pytest.mark.timeout(900)
async def test_tb_run_takes_the_agent_by_its_import_path_and_asks_the_checkpoint(tmp_path: Path) -> None:
    image = docker_engine.make_image(tmp_path, "tmux")
    task = f"hello-{os.getpid()}"
    for name, text in {**FILES, "Dockerfile": f"FROM {image}\nWORKDIR /app\n"}.items():
        path = tmp_path / "set" / task / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    async with engine_in(tmp_path) as engine:
        checkpoint = await trained(engine)
        command = [
            *(
                str(TB),
                "run",
                "--dataset-path",
                str(tmp_path / "set"),
                "--output-path",
                str(tmp_path / "out"),
            ),
            *("--run-id", "run", "--n-concurrent", "1", "--no-cleanup"),
            *("--agent-import-path", "termrl.agents.terminus_tinker:TerminusTinker"),
            *("--agent-kwarg", f"model_name={MODEL}", "--agent-kwarg", f"checkpoint_path={checkpoint}"),
            *("--agent-kwarg", f"base_url={engine.base_url}", "--agent-kwarg", f"max_tokens={LONGEST}"),
            *("--agent-kwarg", "max_episodes=1"),
        ]
        environ = {
            **os.environ,
            "TINKER_API_KEY": engine.api_key,
            "TINKER_TELEMETRY": "0",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }
        process = await asyncio.create_subprocess_exec(
            *command, env=environ, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        try:
            said = (await process.communicate())[0].decode()
        finally:
            docker_engine.docker("rmi", "-f", f"tb__{task}__client", check=False)
        assert process.returncode == 0, said
        (result,) = json.loads((tmp_path / "out" / "run" / "results.json").read_text())["results"]
        assert (result["failure_mode"], result["is_resolved"]) == ("unset", False), said
        assert result["parser_results"] == {"test_says_hello": "failed"}
        (episode,) = (tmp_path / "out").glob("run/*/*/agent-logs/episode-0")
        prompt = (episode / "prompt.txt").read_text()
        assert prompt.startswith("You are an AI assistant tasked with solving command-line tasks")
        answer = await ask(engine, checkpoint, prompt, LONGEST)
        assert result["total_input_tokens"] == answer.turn.prompt_length
        assert result["total_output_tokens"] == answer.turn.sampled_count
        assert (episode / "response.txt").read_text() == answer.content
        assert answer.content != (await ask(engine, None, prompt, LONGEST)).content


def test_a_setting_that_the_agent_would_ignore_is_refused() -> None:
    with pytest.raises(UnknownAgentKwarg, match=r"has no --agent-kwarg api_base: it has base_url, "):
        TerminusTinker(MODEL, api_base="x", no_rebuild=False)
