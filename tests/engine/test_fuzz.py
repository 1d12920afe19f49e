"""The short form of bench/engine_fuzz.py."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from termrl.engine.process import EngineHandle


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_an_engine_that_is_sent_nonsense_answers_4xx_and_lives(engine: EngineHandle) -> None:
    bench = load(Path(__file__).parents[2] / "bench" / "engine_fuzz.py")
    statuses = await bench.fuzz(engine, seconds=4.0, seed=1)
    assert statuses["400"] > 0
    assert engine.running
    assert "Traceback" not in engine.log_path.read_text()
