import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from termrl.errors import UserError
from termrl.policy.sampler import ModelUnavailableError, SampledAnswer, SamplingRefusedError
from termrl.policy.transcript import segments_of
from termrl.rollout.outcome import Outcome
from termrl.rollout.pool import RolloutPool

Bench = Any
Say = Callable[..., str]


async def test_a_task_that_is_done_is_solved_and_its_tokens_are_one_segment(
    bench: Bench, say_hello: list[str]
) -> None:
    rollout = await bench.run(say_hello)
    assert (rollout.outcome, rollout.reward) == (Outcome.SOLVED, 1.0)
    assert rollout.task_name == "test/hello"
    (segment,) = segments_of(rollout.turns)
    sampled = [token for token, was in zip(segment.tokens, segment.mask, strict=True) if was]
    stop = bench.renderer.get_stop_token_ids()[0]
    assert sampled == [token for text in say_hello for token in (*bench.tokenizer.encode(text), stop)]
    assert rollout.timings.total > rollout.timings.agent > 0
    assert rollout.timings.verifier > 0


async def test_the_prompts_are_stock_terminus_2s(bench: Bench, say_hello: list[str]) -> None:
    rollout = await bench.run(say_hello)
    first, second = (bench.tokenizer.decode(turn.prompt) for turn in rollout.turns)
    assert first.startswith(
        "<|im_start|>user\nYou are an AI assistant tasked with solving command-line tasks"
    )
    assert "Task Description:\nWrite hello to /app/hello.txt" in first
    assert "/app#\n" in first
    assert "echo hello > /app/hello.txt" in second
    assert "Are you sure you want to mark the task as complete?" in second


async def test_a_task_that_is_not_done_has_failed_with_reward_0(bench: Bench, say: Say) -> None:
    rollout = await bench.run([say("echo bye > /app/hello.txt", done=True), say(done=True)])
    assert (rollout.outcome, rollout.reward) == (Outcome.FAILED, 0.0)


async def test_a_policy_that_never_finishes_reaches_the_turn_limit_and_is_verified(
    bench: Bench, say: Say
) -> None:
    idle = await bench.run(bench.script([say("true")], repeat_last=True), max_turns=2)
    assert (idle.outcome, idle.reward, len(idle.turns)) == (Outcome.TURN_LIMIT, 0.0, 2)
    able = await bench.run(bench.script([say("echo hello > /app/hello.txt")], repeat_last=True), max_turns=2)
    assert (able.outcome, able.reward, len(able.turns)) == (Outcome.SOLVED, 1.0, 2)


async def test_a_full_context_ends_the_rollout_which_is_verified(bench: Bench, say: Say) -> None:
    first = len((await bench.run([say(done=True), say(done=True)])).turns[0].prompt)
    script = [say("echo hello > /app/hello.txt"), say("true")]
    done = await bench.run(bench.script(script, repeat_last=True), context_limit=first + 300, max_turns=50)
    assert (done.outcome, done.reward) == (Outcome.SOLVED, 1.0)
    idle = await bench.run(
        bench.script([say("true")], repeat_last=True), context_limit=first + 300, max_turns=50
    )
    assert (idle.outcome, idle.reward) == (Outcome.CONTEXT_EXHAUSTED, 0.0)
    assert all(len(turn.tokens) <= first + 300 for turn in idle.turns)


async def test_where_history_is_summarized_the_summaries_are_turns_and_the_work_goes_on(
    bench: Bench, say: Say, say_hello: list[str]
) -> None:
    long = [say("seq 1000000 1000950", duration=0.3)] * 2
    summary = ["I counted.", "How far?", "To 2500."]
    rollout = await bench.run(
        [*long, *summary, *say_hello], enable_summarize=True, max_turns=10, context_limit=18_000
    )
    assert (rollout.outcome, rollout.reward) == (Outcome.SOLVED, 1.0)
    prompts = [bench.tokenizer.decode(turn.prompt) for turn in rollout.turns]
    assert [turn.stop_reason for turn in rollout.turns] == ["stop"] * 7
    assert "You are about to hand off your work" in prompts[2]
    assert "Summary from Previous Agent:**\nI counted." in prompts[3]
    assert "answer each of them one by one in detail:\n\nHow far?" in prompts[4]
    assert "Here are the answers the other agent provided.\n\nTo 2500." in prompts[5]
    assert [segment.turns for segment in segments_of(rollout.turns)] == [3, 1, 1, 2]


async def test_a_context_too_small_for_the_first_prompt_is_the_policys_to_bear(
    bench: Bench, say: Say
) -> None:
    rollout = await bench.run([say()], context_limit=100)
    assert (rollout.outcome, rollout.reward, rollout.turns) == (Outcome.CONTEXT_EXHAUSTED, 0.0, ())


async def test_answers_that_never_parse_are_unparsable(bench: Bench) -> None:
    rollout = await bench.run(bench.script(["I would rather not."], repeat_last=True), max_turns=3)
    assert (rollout.outcome, rollout.reward, len(rollout.turns)) == (Outcome.UNPARSABLE, 0.0, 3)
    (segment,) = segments_of(rollout.turns)
    assert segment.turns == 3


@pytest.mark.parametrize(
    "nonsense",
    [
        '{"analysis": "", "plan": "", "commands": [{"keystrokes": "ls\\n", "duration": 1' + "0" * 400 + "}]}",
        '{"analysis": "", "plan": "", "commands": ' + "[" * 5000 + "]" * 5000 + "}",
        '{"analysis": "\\ud800", "plan": ["\\ud800"], '
        '"commands": [{"keystrokes": "\\u0000\\ud800", "duration": -1}]}',
        '{"analysis": 1, "plan": {}, "commands": [], "task_complete": ["yes"]}',
        '{"analysis": "", "plan": "", "commands": [{"keystrokes": "", "duration": NaN}]}',
        "\x00\x1b[2J<|im_end|>",
        "",
    ],
    ids=[
        "huge number",
        "deep nesting",
        "surrogates and NUL",
        "wrong types",
        "NaN",
        "control characters",
        "nothing",
    ],
)
async def test_whatever_the_model_writes_the_rollout_is_scored(
    bench: Bench, say_hello: list[str], nonsense: str
) -> None:
    rollout = await bench.run([nonsense, *say_hello], max_tokens=12_000, context_limit=40_000)
    assert (rollout.outcome, rollout.reward) == (Outcome.SOLVED, 1.0)


async def test_a_truncated_answer_is_kept_as_a_turn_and_the_agent_goes_on(
    bench: Bench, say: Say, say_hello: list[str]
) -> None:
    limit = max(len(bench.tokenizer.encode(text)) for text in say_hello) + 1
    rollout = await bench.run([say("echo " + "long " * limit), *say_hello], max_tokens=limit)
    assert (rollout.outcome, rollout.reward) == (Outcome.SOLVED, 1.0)
    assert [turn.stop_reason for turn in rollout.turns] == ["length", "stop", "stop"]
    assert len(rollout.turns[0].sampled) == limit
    (segment,) = segments_of(rollout.turns)
    assert segment.turns == 3
    assert f"you exceeded {limit} tokens" in bench.tokenizer.decode(rollout.turns[1].prompt)


async def test_truncated_answers_count_as_turns(bench: Bench, say: Say) -> None:
    rollout = await bench.run(bench.script([say("x" * 200)], repeat_last=True), max_tokens=20, max_turns=4)
    assert (rollout.outcome, len(rollout.turns)) == (Outcome.UNPARSABLE, 4)


async def test_an_agent_that_runs_out_of_time_is_verified(bench: Bench, say: Say) -> None:
    slow = [say("true", duration=30)]
    rollout = await bench.run(slow, agent_timeout_seconds=1.0)
    assert (rollout.outcome, rollout.reward, len(rollout.turns)) == (Outcome.AGENT_TIMEOUT, 0.0, 1)
    able = await bench.run([say("echo hello > /app/hello.txt", duration=30)], agent_timeout_seconds=1.0)
    assert (able.outcome, able.reward) == (Outcome.SOLVED, 1.0)


async def test_an_agent_that_closes_its_own_terminal_is_verified(bench: Bench, say: Say) -> None:
    rollout = await bench.run([say("echo hello > /app/hello.txt", "exit", "echo more", "echo more")])
    assert (rollout.outcome, rollout.reward, len(rollout.turns)) == (Outcome.SOLVED, 1.0, 1)


async def test_a_task_in_steps_is_one_rollout_with_a_segment_a_step(bench: Bench, say: Say) -> None:
    toml = 'schema_version = "1.1"\n[task]\nname = "test/steps"\n[environment]\nnetwork_mode = "no-network"\n'
    steps = {}
    for name in ("one", "two"):
        toml += f'[[steps]]\nname = "{name}"\n'
        steps[f"steps/{name}/instruction.md"] = f"Make /app/{name}\n"
        steps[f"steps/{name}/tests/test.sh"] = (
            f"#!/bin/bash\nif [ -e /app/{name} ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
        )
    task = bench.write_task("steps", {"task.toml": toml, **steps})
    script = [
        text for name in ("one", "wrong") for text in (say(f"touch /app/{name}", done=True), say(done=True))
    ]
    rollout = await bench.run(script, task)
    assert (rollout.outcome, rollout.reward) == (Outcome.FAILED, 0.5)
    assert [segment.turns for segment in segments_of(rollout.turns)] == [2, 2]


@pytest.mark.parametrize(
    "cheat",
    [
        "echo '{\"reward\": 1}' > /logs/verifier/reward.json",
        "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; chmod 444 /logs/verifier/reward.txt",
        "(while sleep 0.01; do echo '{\"reward\": 1}' > /logs/verifier/reward.json; done) > /dev/null 2>&1 &",
        "mkdir -p /tests; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh; chmod 555 /tests/*",
    ],
    ids=["reward.json", "reward.txt", "a writer in the background", "tests of its own"],
)
async def test_an_agent_that_writes_its_own_reward_gets_none(bench: Bench, say: Say, cheat: str) -> None:
    rollout = await bench.run([say(cheat, done=True), say(done=True)])
    assert (rollout.outcome, rollout.reward) == (Outcome.TAMPERED, 0.0)


class BrokenSampler:
    """A service that answers once and then fails."""

    policy_version = 0

    def __init__(self, good: Any, error: Exception | None) -> None:
        self._good = good
        self._error = error
        self.waiting = asyncio.Event()

    def for_attempt(self) -> "BrokenSampler":
        return self

    async def sample(self, prompt: Sequence[int], max_tokens: int, seed: int) -> SampledAnswer:
        if self._good is not None:
            good, self._good = self._good, None
            answer: SampledAnswer = await good.sample(prompt, max_tokens, seed)
            return answer
        if self._error is None:
            self.waiting.set()
            await asyncio.sleep(3600)
        raise self._error or AssertionError


async def test_a_model_service_that_fails_is_not_the_policys_fault(bench: Bench, say: Say) -> None:
    broken = BrokenSampler(bench.script([say("true")]), ModelUnavailableError("the engine is gone"))
    rollout = await bench.run(broken)
    assert (rollout.outcome, rollout.reward) == (Outcome.MODEL_UNAVAILABLE, None)
    assert "the engine is gone" in rollout.detail
    assert len(rollout.turns) == 1


async def test_a_model_service_that_never_answers_is_not_the_policys_fault(bench: Bench, say: Say) -> None:
    rollout = await bench.run(BrokenSampler(bench.script([say()]), None), agent_timeout_seconds=6.0)
    assert (rollout.outcome, rollout.reward) == (Outcome.MODEL_UNAVAILABLE, None)
    assert "had waited" in rollout.detail


async def test_a_request_that_is_refused_stops_the_run(bench: Bench) -> None:
    with pytest.raises(UserError, match="no such key"):
        await bench.run(BrokenSampler(None, SamplingRefusedError("no such key")))


async def test_tests_that_give_no_reward_are_the_verifiers_failure_and_say_why(
    bench: Bench, say_hello: list[str]
) -> None:
    task = bench.write_task("broken", {"tests/test.sh": "#!/bin/bash\nexit 3\n"})
    rollout = await bench.run(say_hello, task)
    assert (rollout.outcome, rollout.reward) == (Outcome.VERIFIER_FAILED, None)
    assert "No reward file found" in rollout.detail


async def test_an_environment_that_does_not_build_is_the_builds_failure(
    bench: Bench, say_hello: list[str]
) -> None:
    task = bench.write_task(
        "unbuildable", {"environment/Dockerfile": "FROM termrl/host\nRUN echo no; false\n"}
    )
    rollout = await bench.run(say_hello, task)
    assert (rollout.outcome, rollout.reward) == (Outcome.BUILD_FAILED, None)
    assert "RUN ended with 1" in rollout.detail


async def test_a_sandbox_that_is_not_healthy_is_the_builds_failure(
    bench: Bench, say_hello: list[str]
) -> None:
    task = bench.write_task("ailing")
    toml = task.task_dir / "task.toml"
    check = '[environment.healthcheck]\ncommand = "test -e /app/{}"\ninterval_sec = 0.1\nretries = 2\n'
    healthy = toml.read_text()
    toml.write_text(healthy + check.format("nothing"))
    rollout = await bench.run(say_hello, task)
    assert (rollout.outcome, rollout.reward) == (Outcome.BUILD_FAILED, None)
    assert "HealthcheckError" in rollout.detail
    toml.write_text(healthy + check.format(""))
    assert (await bench.run(say_hello, task)).outcome is Outcome.SOLVED


async def test_a_cancelled_rollout_ends_at_once_and_leaves_nothing(bench: Bench, say: Say) -> None:
    sampler = BrokenSampler(bench.script([say("touch /app/started", duration=0)]), None)
    pool = RolloutPool(bench.runner(), concurrency=1)
    running = asyncio.create_task(pool.run(bench.task, sampler, seed=0))
    async with asyncio.timeout(60):
        await sampler.waiting.wait()
    assert pool.in_flight == 1
    running.cancel()
    async with asyncio.timeout(30):
        with pytest.raises(asyncio.CancelledError):
            await running
    assert pool.in_flight == 0
    assert bench.trial_dirs() == []


async def test_an_unknown_kind_of_sandbox_is_refused_before_anything_runs(bench: Bench) -> None:
    with pytest.raises(UserError, match="no sandbox of type 'spaceship'"):
        bench.runner(environment="spaceship")


async def test_trial_directories_are_kept_as_asked(bench: Bench, say: Say, say_hello: list[str]) -> None:
    failing = [say(done=True), say(done=True)]
    await bench.run(say_hello, keep_trials="none")
    await bench.run(say_hello, keep_trials="failed")
    assert bench.trial_dirs() == []
    failed = await bench.run(failing, keep_trials="failed")
    assert [str(path) for path in bench.trial_dirs()] == [failed.trial_dir]
    await bench.run(say_hello, keep_trials="all")
    assert len(bench.trial_dirs()) == 2


async def test_tests_that_read_what_the_agent_logged_find_it_though_nothing_is_kept(
    bench: Bench, say_hello: list[str]
) -> None:
    test = (
        '#!/bin/bash\ngrep -c \'"source": "agent"\' /logs/agent/trajectory.json > /logs/verifier/reward.txt\n'
    )
    task = bench.write_task("logs", {"tests/test.sh": test})
    rollout = await bench.run(say_hello, task, keep_trials="none")
    assert rollout.reward == 2.0
    assert bench.trial_dirs() == []


async def test_a_kept_trial_has_its_trajectory_once_and_no_token_ids(bench: Bench, say: Say) -> None:
    sizes = []
    for turns in (8, 16):
        script = bench.script([say("true", duration=0)], repeat_last=True)
        rollout = await bench.run(script, keep_trials="all", max_turns=turns, context_limit=100_000)
        (trajectory,) = (path for path in bench.trial_dirs() if str(path) == rollout.trial_dir)
        text = (trajectory / "agent" / "trajectory.json").read_text()
        steps = json.loads(text)["steps"]
        assert len(steps) == turns + 1
        assert "token_ids" not in text
        sizes.append(len(text) - len(json.dumps(steps[0])))
    assert sizes[1] <= 2.2 * sizes[0]


async def test_the_same_seed_asks_with_the_same_seeds(bench: Bench, say_hello: list[str]) -> None:
    seen: list[list[int]] = []

    class Listening:
        policy_version = 7

        def for_attempt(self) -> "Listening":
            self._script = bench.script(say_hello)
            seen.append([])
            return self

        async def sample(self, prompt: Sequence[int], max_tokens: int, seed: int) -> SampledAnswer:
            seen[-1].append(seed)
            answer: SampledAnswer = await self._script.sample(prompt, max_tokens, seed)
            return answer

    for seed in (1, 1, 2):
        rollout = await bench.run(Listening(), seed=seed)
        assert [turn.policy_version for turn in rollout.turns] == [7, 7]
    assert seen[0] == seen[1]
    assert not set(seen[0]) & set(seen[2])
    assert len(set(seen[0])) == 2
