"""The short form of bench/engine_fuzz.py."""

from __future__ import annotations

from engine_fuzz import fuzz
from termrl.engine.process import EngineHandle


async def test_an_engine_that_is_sent_nonsense_answers_4xx_and_lives(engine: EngineHandle) -> None:
    statuses = await fuzz(engine, seconds=4.0, seed=1)
    assert statuses["400"] > 0
    assert engine.running
    assert "Traceback" not in engine.log_path.read_text()
