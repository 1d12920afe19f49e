"""Settings that will disappoint are said so before anything is spent."""

from pathlib import Path

import pytest

from termrl import train
from termrl.config import TrainConfig
from termrl.errors import UserError

KEEPS = "keep_thinking is off"
REFUSES = "max_tokens is 16385, but Terminus-2 refuses answers over 16384 tokens whole"


async def warnings_of(tmp_path: Path, caplog: pytest.LogCaptureFixture, **settings: object) -> str:
    config = TrainConfig(dataset=str(tmp_path / "nowhere"), run_root=str(tmp_path / "runs"), **settings)  # type: ignore[arg-type]
    with pytest.raises(UserError):
        await train(config)
    assert not (tmp_path / "runs").exists()
    return caplog.text


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({"max_tokens": 16_385}, True),
        ({"max_tokens": 16_384}, False),
        ({"max_tokens": 16_385, "agent": "bash"}, False),
    ],
    ids=["above", "at the limit", "another agent"],
)
async def test_answers_longer_than_terminus_2_takes_are_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, object], warned: bool
) -> None:
    assert (REFUSES in await warnings_of(tmp_path, caplog, **settings)) is warned


@pytest.mark.parametrize("keep", [False, None], ids=["off", "by default"])
async def test_dropping_thoughts_in_training_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, keep: bool | None
) -> None:
    assert (KEEPS in await warnings_of(tmp_path, caplog, keep_thinking=keep)) is (keep is False)
