import sqlite3
from pathlib import Path

import pytest

from termrl.errors import UserError
from termrl.policy.transcript import Turn
from termrl.rollout.outcome import Outcome
from termrl.rollout.record import Rollout, Timings
from termrl.store import Checkpoint, Place, Run, find_run, list_runs
from termrl.store.ledger import DrawnGroup
from termrl.store.run import DATABASE, RunBusyError
from termrl.store.turns import encode_turns


def rollout(
    reward: float | None = 1.0, outcome: Outcome = Outcome.SOLVED, turns: tuple[Turn, ...] = ()
) -> Rollout:
    return Rollout("a-task", outcome, reward, turns, Timings(1, 2, 1, 0.5, 4), tags={"family": "a"})


def turn(prompt: tuple[int, ...], sampled: tuple[int, ...]) -> Turn:
    return Turn(prompt, sampled, tuple(-0.1 * 2**-i for i in range(len(sampled))), 3, "stop", 0.25)


def new_run(tmp_path: Path, name: str = "one") -> Run:
    return Run.create(tmp_path / name, kind="train", settings={"seed": 1})


def test_a_committed_rollout_reads_back_as_it_was(tmp_path: Path) -> None:
    first = turn((1, 2, 3), (4, 5))
    turns = (first, turn((*first.tokens, 6), (7,)), turn((9,), (8,)))
    exact = tuple(
        Turn(t.prompt, t.sampled, tuple(float.fromhex((0.5).hex()) for _ in t.sampled), 3, "stop", 0.25)
        for t in turns
    )
    place = Place("train", 2, 1, 0)
    with new_run(tmp_path) as run:
        run.add_rollout(place, rollout(turns=exact))
    with Run.open(tmp_path / "one") as run:
        assert run.rollouts("train", 2) == {place: rollout(turns=exact)}
        assert run.rollouts("train", 3) == {}
        assert run.rollouts("train", with_turns=False)[place].turns == ()


def test_stored_bytes_grow_with_the_tokens_not_with_their_square() -> None:
    def stored(turn_count: int) -> int:
        turns: list[Turn] = []
        stream: tuple[int, ...] = ()
        for index in range(turn_count):
            fresh = tuple((index * 7919 + i * 104729) % 50_000 for i in range(300))
            turns.append(turn(stream + fresh, fresh[::-1]))
            stream = turns[-1].tokens
        return len(encode_turns(turns))

    assert stored(100) <= 2.2 * stored(50)


def test_a_run_is_found_by_name_prefix_path_and_last(tmp_path: Path) -> None:
    for name in ("alpha", "beta", "bets"):
        new_run(tmp_path, name).close()
    assert find_run("alpha", tmp_path).name == "alpha"
    assert find_run("a", tmp_path).name == "alpha"
    assert find_run("last", tmp_path).name == "bets"
    assert find_run(str(tmp_path / "beta"), Path("/nowhere")).name == "beta"
    assert [path.name for path in list_runs(tmp_path)] == ["alpha", "beta", "bets"]
    with pytest.raises(UserError, match="type more"):
        find_run("bet", tmp_path)
    with pytest.raises(UserError, match="no run 'gamma'"):
        find_run("gamma", tmp_path)


def test_two_writers_of_one_run_are_refused(tmp_path: Path) -> None:
    with new_run(tmp_path), pytest.raises(RunBusyError, match="Another termrl process"):
        Run.open(tmp_path / "one", write=True)


def test_a_run_of_another_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    new_run(tmp_path).close()
    database = sqlite3.connect(tmp_path / "one" / DATABASE)
    database.execute("PRAGMA user_version=99")
    database.close()
    before = (tmp_path / "one" / DATABASE).read_bytes()
    with pytest.raises(UserError, match="version 99"):
        Run.open(tmp_path / "one", write=True)
    assert (tmp_path / "one" / DATABASE).read_bytes() == before


def test_a_directory_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run"):
        Run.open(tmp_path)


def test_steps_checkpoints_and_phases_read_back(tmp_path: Path) -> None:
    with new_run(tmp_path) as run:
        run.record_step(0, {"reward": 0.5}, Checkpoint("step-0", 0, "state", "sampler"))
        run.record_step(1, {"reward": 0.6})
        run.record_phase("rl", seconds=2, done=False)
        run.record_phase("rl", seconds=3, done=True, facts={"n": 1})
        assert run.steps() == {0: {"reward": 0.5}, 1: {"reward": 0.6}}
        assert run.checkpoints() == [Checkpoint("step-0", 0, "state", "sampler")]
        assert run.phases() == {"rl": {"seconds": 5.0, "done": True, "n": 1}}
        assert run.phase_done("rl")
        assert not run.phase_done("warmup")
        assert run.settings == {"seed": 1}


def test_the_ledger_reads_back_what_was_drawn_trained_and_credited(tmp_path: Path) -> None:
    with new_run(tmp_path) as run:
        groups = [DrawnGroup(0, "a", 0), DrawnGroup(1, "b", 0), DrawnGroup(2, "a", 3, in_place_of=0)]
        run.ledger.draw(groups)
        run.ledger.enter(0, 0, [1])
        run.ledger.enter(0, 1, [2])
        run.ledger.credit(0, [(1, 0, 0.5, -0.25)])
    with Run.open(tmp_path / "one") as run:
        assert list(run.ledger.groups().values()) == groups
        assert run.ledger.batch(0) == [1, 2]
        assert run.ledger.batches() == {1: 0, 2: 0}
        assert run.ledger.credits(0) == [(1, 0, 0.5, -0.25)]
        with pytest.raises(sqlite3.IntegrityError):
            run.ledger.enter(1, 0, [2])


def test_a_run_of_the_version_before_is_brought_up_to_date_and_goes_on(tmp_path: Path) -> None:
    with Run.create(tmp_path / "old", kind="train", settings={"batch_size": 2}) as run:
        for step in range(2):
            for group in range(2):
                run.add_rollout(Place("train", step, group, 0), rollout())
        run.record_step(0, {"reward": 0.5}, Checkpoint("start", 0, "state", "sampler"))
    database = sqlite3.connect(tmp_path / "old" / DATABASE)
    for table in ("groups", "batches", "credits"):
        database.execute(f"DROP TABLE {table}")
    database.execute("ALTER TABLE checkpoints DROP COLUMN kind")
    database.execute("PRAGMA user_version=1")
    database.commit()
    database.close()
    with Run.open(tmp_path / "old") as run:
        assert sorted(run.ledger.groups()) == [0, 1, 2, 3]
        assert run.ledger.batch(0) == [0, 1]
        assert run.ledger.batch(1) == []
        assert run.checkpoints() == [Checkpoint("start", 0, "state", "sampler")]
        assert len(run.rollouts("train")) == 4
