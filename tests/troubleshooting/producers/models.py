"""Messages of docs/troubleshooting.md: models, checkpoints, keys and model services."""

import asyncio
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import tinker
import tokenizers

from producers import Place, said_by, says
from termrl.engine import process
from termrl.engine.catalog import resolve_model
from termrl.policy.budget import ContextBudget
from termrl.policy.chat import ChatSampler, NoModel
from termrl.policy.chatml import ChatMLRenderer
from termrl.policy.rendering import make_renderer
from termrl.policy.sampler import TinkerSampler
from termrl.policy.tokenizer import Tokenizer, load_tokenizer

said_by(
    "There is no model …: give one of …",
    *("eval", "model_name=./nowhere"),
)
said_by(
    "base_url is … but there is no TINKER_API_KEY: put it into .env, or let `termrl setup` ask for it.",
    *("eval", "base_url=http://127.0.0.1:9"),
)
said_by(
    "Nobody answers at … (…): start the server, or give another base_url.",
    *("eval", "model_name=openai/x", "base_url=http://127.0.0.1:9/v1"),
)
said_by(
    "checkpoint_url is …, and litellm knows no checkpoints: …",
    *("eval", "model_name=hosted_vllm/x", "model_service=litellm", "checkpoint_url=tinker://a/weights/b"),
)
said_by("… is served by Tinker but there is no TINKER_API_KEY: …", "eval", "model_name=Qwen/Qwen3-8B")
said_by("… is reached through litellm but there is no …: …", "eval", "model_name=anthropic/x")
said_by("… is a model on Tinker and could be one at OpenAI too: …", "eval", "model_name=openai/gpt-oss-20b")
said_by("dtype must be float32 or bfloat16, not …", "engine", "serve", "dtype=x")
said_by("there is no renderer '…'; there are auto, …", "eval", "renderer=nothing")


@says("The model directory … is incomplete: it has no …")
def _(place: Place) -> list[str]:
    model = Path(shutil.copytree(resolve_model("termrl/tiny"), place.path / "model"))
    (model / "tokenizer.json").unlink()
    return ["eval", "model_name=./model"]


@says("no tokenizer could be loaded for the model …")
def _(place: Place) -> list[str]:
    place.monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    place.monkeypatch.setenv("TINKER_API_KEY", "tml-none")
    return ["eval", "model_name=nobody/nothing"]


@says("None of the runs under … has the checkpoint …: …")
def _(place: Place) -> list[str]:
    place.run("old", model_name="termrl/tiny")
    return ["eval", "checkpoint_url=tinker://a/sampler_weights/b"]


@says("The run … has no checkpoint yet: …")
def _(place: Place) -> list[str]:
    place.run("old", model_name="termrl/tiny")
    return ["eval", "checkpoint_url=old"]


@says("The checkpoint … is of …, and model_name is …: …")
def _(place: Place) -> list[str]:
    place.run("old", checkpoint="tinker://a/sampler_weights/b", model_name="other")
    return ["eval", "checkpoint_url=old"]


@says("a model that is asked in text has no tokens to sample")
def _(place: Place) -> None:
    asyncio.run(NoModel().sample([1], 1, 0))


@says("this agent was to ask no model, and asked one")
def _(place: Place) -> None:
    asyncio.run(NoModel().policy(ContextBudget(10, 10), 0).ask([]))


class WithoutLogprobs:
    """A service's client whose answer lacks what training needs."""

    async def sample_async(self, **_: object) -> object:
        return SimpleNamespace(sequences=[SimpleNamespace(tokens=[1, 2], logprobs=None, stop_reason="stop")])


@says("the model service returned an answer without a logprob for each of its tokens; …")
def _(place: Place) -> None:
    client = cast(tinker.SamplingClient, WithoutLogprobs())
    asyncio.run(TinkerSampler(client, policy_version=0, stop=[]).sample([1], 1, 0))


@says("the model service refused to sample: …")
def _(place: Place) -> None:
    outside_of_the_vocabulary = [10**6]

    async def sample() -> None:
        with place.tinker() as service:
            client = await service.create_sampling_client_async(base_model="termrl/tiny")
            sampler = TinkerSampler(client, policy_version=0, stop=[])
            await sampler.sample(outside_of_the_vocabulary, 1, 0)

    asyncio.run(sample())


@says("renderer=… can't be used with the tokenizer of …: …")
def _(place: Place) -> None:
    make_renderer(load_tokenizer(resolve_model("termrl/tiny")), "termrl/tiny", name="gpt-oss")


@says("the tokenizer at … has no … token, which ChatML needs")
def _(place: Place) -> None:
    bare = SimpleNamespace(name_or_path="here", unk_token_id=0, convert_tokens_to_ids=lambda token: None)
    ChatMLRenderer(cast(Tokenizer, bare))


async def _start_engine(place: Place, model: str) -> None:
    async with process.start_engine(place.path / "engine", models=(model,), log_path=place.path / "log"):
        pass


@says("The engine did not start (exit code …): …")
def _(place: Place) -> None:
    asyncio.run(_start_engine(place, "./nowhere"))


@says("The engine did not answer within … seconds; its log is …")
def _(place: Place) -> None:
    place.monkeypatch.setattr(process, "START_SECONDS", 0.01)
    asyncio.run(_start_engine(place, "termrl/tiny"))


@says("The model … is no local path and could not be fetched from the Hugging Face hub: …")
def _(place: Place) -> None:
    place.monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    resolve_model("nobody/nothing")


said_by("There is no GGUF file …", "engine", "serve", "model_name=./nowhere.gguf")


@says("checkpoint_url is '…': on a server a checkpoint is named tinker://RUN/sampler_weights/NAME.")
def _(place: Place) -> list[str]:
    place.monkeypatch.setenv("TINKER_API_KEY", place.engine.api_key)
    return ["eval", f"base_url={place.engine.base_url}", "checkpoint_url=last"]


@says("The server refuses the key: …")
def _(place: Place) -> list[str]:
    place.monkeypatch.setenv("TINKER_API_KEY", "tml-wrong")
    return ["eval", f"base_url={place.engine.base_url}", "checkpoint_url=tinker://a/sampler_weights/b"]


@says("The server has no checkpoint …")
def _(place: Place) -> list[str]:
    place.monkeypatch.setenv("TINKER_API_KEY", place.engine.api_key)
    return ["eval", f"base_url={place.engine.base_url}", "checkpoint_url=tinker://a/sampler_weights/b"]


def tokenizer_of(place: Place, settings: str) -> None:
    words = tokenizers.models.WordLevel({"<s>": 0}, unk_token="<s>")
    tokenizers.Tokenizer(words).save(str(place.file("model/tokenizer.json")))
    place.file("model/tokenizer_config.json", settings)
    make_renderer(load_tokenizer(place.path / "model"), "some/model")


@says("the tokenizer of … has no chat template, so its prompts can't be made; …")
def _(place: Place) -> None:
    tokenizer_of(place, '{"tokenizer_class": "PreTrainedTokenizerFast"}')


@says("… is not valid JSON: …")
def _(place: Place) -> None:
    tokenizer_of(place, "{")


@says("the model directory … has no tokenizer.json; put the model's tokenizer files beside its weights")
def _(place: Place) -> None:
    load_tokenizer(place.path)


@says("there is no model directory at …")
def _(place: Place) -> None:
    load_tokenizer("./nowhere")


@says("… can't be read as a tokenizer: …")
def _(place: Place) -> None:
    place.file("model/tokenizer.json", "{}")
    load_tokenizer("./model")


def ask(place: Place, status: int, answer: dict[str, object], times: int) -> None:
    """Asks an OpenAI-compatible endpoint that always answers this."""

    async def talk() -> None:
        with place.endpoint(status, answer) as url:
            policy = ChatSampler("openai/x", base_url=url, temperature=1.0).policy(ContextBudget(1000, 10), 0)
            for _ in range(times):
                await policy.ask([{"role": "user", "content": "hello"}])

    asyncio.run(talk())


@says("the model service refused to answer: …")
def _(place: Place) -> None:
    ask(place, 401, {"error": {"message": "wrong key", "type": "authentication_error"}}, times=1)


@says("the model service gave … answers in a row without a single token: …")
def _(place: Place) -> None:
    said = {"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 0, "total_tokens": 1}
    answer = {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "x",
        "choices": [said],
        "usage": usage,
    }
    ask(place, 200, answer, times=20)
