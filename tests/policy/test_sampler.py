import httpx
import pytest
import tinker

from termrl.policy.chatml import ChatMLRenderer
from termrl.policy.sampler import ModelUnavailableError, SamplingRefusedError, classify_failure, turn_seed
from termrl.policy.scripted import ScriptedSampler
from termrl.policy.tokenizer import FileTokenizer


def status_error(status: int) -> tinker.APIStatusError:
    response = httpx.Response(status, request=httpx.Request("POST", "http://127.0.0.1/api/v1/asample"))
    return tinker.APIStatusError(f"status {status}", response=response, body=None)


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 422])
def test_a_refused_request_is_the_users_to_mend(status: int) -> None:
    failure = classify_failure(status_error(status))
    assert isinstance(failure, SamplingRefusedError)
    assert failure.exit_code == 2


@pytest.mark.parametrize("status", [408, 409, 410, 429, 500, 503])
def test_a_busy_or_broken_service_is_infrastructure(status: int) -> None:
    assert isinstance(classify_failure(status_error(status)), ModelUnavailableError)


def test_a_failed_request_is_judged_by_its_category() -> None:
    mine = tinker.RequestFailedError("bad prompt", "r1", tinker.types.RequestErrorCategory.User)
    theirs = tinker.RequestFailedError("worker died", "r2", tinker.types.RequestErrorCategory.Server)
    assert isinstance(classify_failure(mine), SamplingRefusedError)
    assert isinstance(classify_failure(theirs), ModelUnavailableError)


def test_what_nobody_understands_is_infrastructure_and_says_what_it_was() -> None:
    failure = classify_failure(AssertionError("asample promises always carry ids"))
    assert isinstance(failure, ModelUnavailableError)
    assert "AssertionError" in str(failure)


def test_seeds_of_calls_differ_and_are_functions_of_rollout_and_call() -> None:
    seeds = {turn_seed(rollout, call) for rollout in range(30) for call in range(30)}
    assert len(seeds) == 900
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert turn_seed(3, 4) == turn_seed(3, 4)


async def test_a_script_is_given_in_order_as_if_it_had_been_sampled(
    tokenizer: FileTokenizer, renderer: ChatMLRenderer
) -> None:
    sampler = ScriptedSampler(["one", "two"], tokenizer, renderer)
    first = await sampler.sample([1, 2], max_tokens=10, seed=0)
    second = await sampler.sample([1, 2], max_tokens=10, seed=0)
    assert renderer.parse_response(first.tokens).content == "one"
    assert renderer.parse_response(second.tokens).content == "two"
    assert first.stop_reason == "stop"
    assert first.tokens[-1] == renderer.get_stop_token_ids()[0]
    assert first.logprobs == (0.0,) * len(first.tokens)
    with pytest.raises(ModelUnavailableError, match="none for call 3"):
        await sampler.sample([1, 2], max_tokens=10, seed=0)
    again = await sampler.for_attempt().sample([1, 2], max_tokens=10, seed=0)
    assert again == first


async def test_a_scripted_answer_that_is_too_long_is_cut(
    tokenizer: FileTokenizer, renderer: ChatMLRenderer
) -> None:
    answer = await ScriptedSampler(["abcdef"], tokenizer, renderer).sample([1], max_tokens=3, seed=0)
    assert (len(answer.tokens), answer.stop_reason) == (3, "length")


async def test_the_last_answer_can_be_given_for_ever(
    tokenizer: FileTokenizer, renderer: ChatMLRenderer
) -> None:
    sampler = ScriptedSampler(["a", "b"], tokenizer, renderer, repeat_last=True)
    texts = [renderer.parse_response((await sampler.sample([1], 9, 0)).tokens).content for _ in range(4)]
    assert texts == ["a", "b", "b", "b"]
