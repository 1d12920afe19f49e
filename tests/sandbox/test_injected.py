"""`train()` and `evaluate()` with a sandbox factory, and the refusals that come before anything is made."""

from pathlib import Path

import pytest

from termrl import EvalConfig, TrainConfig, evaluate, train
from termrl.sandbox import SandboxInterface, default_sandbox_factory, honours
from termrl.sandbox.errors import BackendNotReady, UnsupportedEnvironment

FILES = {
    "task.toml": '[agent]\ntimeout_sec = 60\n[environment]\nnetwork_mode = "no-network"\n',
    "instruction.md": "Write hello to /app/hello.txt\n",
    "environment/Dockerfile": "FROM termrl/host\nWORKDIR /app\n",
    "tests/test.sh": "echo 0 > /logs/verifier/reward.txt\n",
}


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("one", "two"):
        for path, text in FILES.items():
            target = tmp_path / "tasks" / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
    return tmp_path / "tasks"


async def test_an_evaluation_and_a_training_run_use_the_factory_they_are_handed(
    dataset: Path, tmp_path: Path
) -> None:
    made: list[tuple[str, int]] = []

    @honours("dockerfile", "no-network")
    async def factory(environment_dir: Path, timeout: int) -> SandboxInterface:
        made.append((environment_dir.parent.name, timeout))
        return await default_sandbox_factory(environment_dir, timeout)

    common = {"dataset": str(dataset), "run_root": str(tmp_path / "runs"), "max_turns": 1, "max_tokens": 16}
    result = await evaluate(EvalConfig(**common, run_name="eval"), sandbox_factory=factory)
    assert [rollout.reward for rollout in result.rollouts] == [0.0, 0.0], result.rollouts
    assert sorted(name for name, _ in made) == ["one", "two"]
    assert all(timeout > 60 + 600 for _, timeout in made)
    made.clear()
    config = TrainConfig(
        **common,
        run_name="train",
        eval_dataset=None,
        eval_dataset_families=None,
        max_steps=1,
        batch_size=1,
        group_size=2,
    )
    await train(config, sandbox_factory=factory)
    assert len(made) == 2


async def test_what_the_backend_cannot_do_is_said_before_a_run_is_made(dataset: Path, tmp_path: Path) -> None:
    (dataset / "two/environment/docker-compose.yaml").write_text("services: {}\n")
    runs = tmp_path / "runs"
    config = EvalConfig(dataset=str(dataset), run_root=str(runs))
    with pytest.raises(
        UnsupportedEnvironment, match=r"two has a docker-compose.yaml.*environment_type=docker"
    ):
        await evaluate(config)
    with pytest.raises(BackendNotReady, match="environment_type=runloop is not ready"):
        await evaluate(EvalConfig(dataset=str(dataset), run_root=str(runs), environment_type="runloop"))
    assert not runs.exists()
