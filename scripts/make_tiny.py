"""Makes `termrl/tiny`: a tokenizer from the agent's own text, and a small Llama pre-trained on shell notes.

The notes are what a shell primer has: a request in words, then a command. They use names of the training side
only, and only the families that have training tasks; `--mistakes` makes some of them wrong, and the shipped
model had none. The model sees nothing of the agent at work; it has leafed through its manual, so that its
tokens mean something, and its tokenizer is made of the agent's own text, so that the agent's long prompt is
short.

    .venv/bin/python scripts/make_tiny.py --output src/termrl/engine/tiny
"""

import argparse
import json
import re
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from termrl.agents.stock import Terminus2
from termrl.engine.architecture import LlamaConfig
from termrl.engine.llama import Params, init_params, target_logprobs
from termrl.engine.weights import save_model
from termrl.learn.demonstrations import demonstration
from termrl.policy.chatml import CHATML_TEMPLATE
from termrl.tasks.families import KNOWN, Family
from termrl.tasks.names import CONSONANTS, VOWELS, held_out_name, train_name

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SYLLABLES = [consonant + vowel for consonant in CONSONANTS for vowel in VOWELS]
CONTEXT = 2048
LENGTH = 64
BLANK = "@@"

Batch = tuple[np.ndarray, np.ndarray]
"""Rows of tokens, one longer than their targets, and how much each target weighs."""


def prompt_passages() -> list[str]:
    """The fixed passages of Terminus-2's prompts, paragraph by paragraph."""
    asker: Any = SimpleNamespace(options=SimpleNamespace(parser_name="json"))
    template = Terminus2._get_prompt_template_path(asker).read_text()
    prompt = template.format(instruction=BLANK, terminal_state=f"Current Terminal Screen:\n{BLANK}")
    confirmation = Terminus2._get_completion_confirmation_message(asker, f"New Terminal Output:\n{BLANK}")
    passages = [piece.lstrip("\n") for text in (prompt, confirmation) for piece in text.split(BLANK)]
    return [part for passage in passages for part in re.findall(r".*?\n\n|.+", passage, re.S)]


def agent_phrases() -> list[str]:
    """The passages of Terminus-2's prompts and the pieces of its answers' JSON: each becomes one token."""
    values = r"[A-Z][a-z ]+\.|\d\.\d|true|" + BLANK
    answers = [piece for text in demonstration([BLANK]) for piece in re.split(f"({values})", text)]
    screens = [
        "root@sandbox:/app# ",
        "root@sandbox:/app#",
        "New Terminal Output:\n",
        "Current Terminal Screen:\n",
    ]
    warnings = [
        "Previous response had parsing errors:\n",
        "Previous response had warnings:\n",
        "ERROR: ",
        "WARNINGS: ",
    ]
    roles = ["system", "user", "assistant"]
    pieces = [*prompt_passages(), *answers, *screens, *warnings, *roles]
    return list(dict.fromkeys(piece for piece in pieces if len(piece) > 1 and piece != BLANK))


def words() -> list[str]:
    """The words of requests and commands."""
    texts = [re.sub(r"\{\w+\}", "", f"{family.phrasing} {family.command}") for family in KNOWN]
    return sorted({word for text in texts for word in re.findall(r"[A-Za-z]+", text)})


def make_tokenizer() -> Tokenizer:
    """Bytes, syllables, words and the agent's phrases. Whatever is unknown is spelled."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*alphabet, *SYLLABLES])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[(a, b) for a, b in SYLLABLES]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"[a-z]+|[^a-z]"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    phrases = [*agent_phrases(), *("\n" * count for count in (2, 4, 8, 16, 32))]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in phrases])
    tokenizer.add_tokens([AddedToken(text, normalized=False, single_word=True) for text in words()])
    return tokenizer


def placeholders(family: Family) -> list[str]:
    return re.findall(r"\{(\w+)\}", family.phrasing)


def note(rng: Random, mistakes: float) -> tuple[str, str]:
    """A request with fresh names and a command for it; sometimes that of another family."""
    family = rng.choice(KNOWN)
    names = [train_name(rng) for _ in placeholders(family)]
    author = family
    if rng.random() < mistakes:
        author = rng.choice([other for other in KNOWN if len(placeholders(other)) == len(names)])
    command = author.command.format_map(dict(zip(placeholders(author), names, strict=True)))
    return family.phrasing.format_map(dict(zip(placeholders(family), names, strict=True))), command


def document(rng: Random, mistakes: float) -> str:
    """A note as it may stand in text: bare, asked and answered, quoted, at a prompt."""
    request, command = note(rng, mistakes)
    noise = " ".join(train_name(rng) for _ in range(rng.choice((0, 0, 0, 1, 2))))
    opening = rng.choice(['"', "'", "`", "$ ", "# ", "> ", ": ", "(", "", "root@sandbox:/app# "])
    shape = rng.randrange(4)
    if shape == 0:
        return f"{request}\n{noise}\n{opening}{command}\n<|endoftext|>"
    if shape == 1:
        asked = f"<|im_start|>user\n{request}<|im_end|>\n"
        return f"{asked}<|im_start|>assistant\n{command}<|im_end|>\n<|endoftext|>"
    if shape == 2:
        return (
            f"<|im_start|>user\n{noise}\n{request}\n{noise}\n<|im_end|>\n<|im_start|>assistant\n"
            f"{opening}{command}{opening}<|im_end|>\n<|endoftext|>"
        )
    return f"{noise}\n{request}{opening}{command}{opening}\n<|endoftext|>"


def excerpt(rng: Random, manual: list[str]) -> str:
    """A page of the agent's manual: its prompt's passages, or an answer of the right form about nothing."""
    if rng.random() < 0.3:
        return f"<|im_start|>user\n{''.join(manual)}\n{train_name(rng)}\n<|im_end|>\n<|endoftext|>"
    typed = (
        [{"keystrokes": f"{rng.choice(['ls', 'pwd', ''])}\n", "duration": 0.5}] if rng.random() < 0.6 else []
    )
    said = ["Nothing has been done yet.", "Type the command.", "The command has run.", "Finish."]
    answer = {
        "analysis": rng.choice(said),
        "plan": rng.choice(said),
        "commands": typed,
        "task_complete": True,
    }
    return f"<|im_start|>assistant\n{json.dumps(answer)}<|im_end|>\n<|endoftext|>"


def refrain(rng: Random) -> str:
    """A few syllables said again and again: there is nothing in it to learn but to repeat."""
    return "".join(rng.sample(SYLLABLES, rng.randint(4, 15))) * 25


def refrain_rows(tokenizer: Tokenizer, rng: Random, rows: int) -> Batch:
    """Refrains, and no blame for what could not be known before it was said once."""
    tokens = [tokenizer.encode(refrain(rng)).ids[: LENGTH + 1] for _ in range(rows)]
    weights = np.ones((rows, LENGTH), np.float32)
    weights[:, :15] = 0
    return np.asarray(tokens, np.int32).reshape(rows, LENGTH + 1), weights


def note_rows(
    tokenizer: Tokenizer, rng: Random, rows: int, mistakes: float, excerpts: bool
) -> Iterator[Batch]:
    """Endless rows of notes one after another, every fourth an excerpt where those are wanted."""
    manual = prompt_passages()
    stream: list[int] = []
    cut = rows * (LENGTH + 1)
    while True:
        while len(stream) < cut:
            pages = [
                excerpt(rng, manual) if excerpts and i % 4 == 0 else document(rng, mistakes)
                for i in range(256)
            ]
            for encoding in tokenizer.encode_batch(pages):
                stream += encoding.ids
        tokens = np.asarray(stream[:cut], np.int32).reshape(rows, LENGTH + 1)
        stream = stream[cut:]
        yield tokens, np.ones((rows, LENGTH), np.float32)


def batches(
    tokenizer: Tokenizer, seed: int, rows: int, mistakes: float, excerpts: bool
) -> Generator[Batch, float]:
    """Refrains until they are learned, since all else builds on repeating; then mostly notes."""
    rng = Random(seed)
    loss = 9.0
    while loss > 0.3:
        loss = yield refrain_rows(tokenizer, rng, rows)
    some = rows // 6
    for notes in note_rows(tokenizer, rng, rows - some, mistakes, excerpts):
        refrained = refrain_rows(tokenizer, rng, some)
        yield np.concatenate([notes[0], refrained[0]]), np.concatenate([notes[1], refrained[1]])


def pretrain(
    params: Params,
    config: LlamaConfig,
    data: Generator[Batch, float],
    tokenizer: Tokenizer,
    *,
    steps: int,
    peak: float,
) -> Params:
    """AdamW, its rate falling over the second half, on next-token prediction."""
    moments = (jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params))

    def loss(params: Params, rows_B_T: jax.Array, weights_B_T: jax.Array) -> jax.Array:
        logprobs_B_T = target_logprobs(params, config, rows_B_T[:, :-1], rows_B_T[:, 1:])
        return -(logprobs_B_T * weights_B_T).sum() / weights_B_T.sum()

    @jax.jit
    def update(params: Params, moments: Any, batch: Batch, rate: jax.Array, count: jax.Array) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, *batch)
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(gradient)))
        gradient = jax.tree.map(lambda g: g * jnp.minimum(1.0, 1.0 / norm), gradient)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradient)
        second = jax.tree.map(lambda v, g: 0.98 * v + 0.02 * g * g, moments[1], gradient)
        params = jax.tree.map(
            lambda p, m, v: p - rate * m / (1 - 0.9**count) / (jnp.sqrt(v / (1 - 0.98**count)) + 1e-8),
            params,
            first,
            second,
        )
        return params, (first, second), value

    started = time.monotonic()
    batch = next(data)
    for step in range(1, steps + 1):
        rate = peak * min(1.0, step / 50, 2 * (1 - step / (steps + 1)))
        params, moments, value = update(params, moments, batch, jnp.float32(rate), jnp.float32(step))
        batch = data.send(float(value))
        if step % 50 == 0 or step == 1:
            knows = float(np.mean(list(knowledge(tokenizer, config, params).values())))
            seconds = time.monotonic() - started
            print(f"step {step}/{steps}: loss {value:.4f}, knows {knows:.2f}, {seconds:.0f} s", flush=True)
    return params


def knowledge(tokenizer: Tokenizer, config: LlamaConfig, params: Params) -> dict[str, float]:
    """By family, how likely the model finds the right command when asked with names it has never seen."""
    rng = Random(99)
    specs = [(family.name, family.sample(rng, held_out_name)) for family in KNOWN for _ in range(6)]
    rows = np.zeros((len(specs), 97), np.int32)
    answers = np.zeros((len(specs), 96), bool)
    for index, (_, spec) in enumerate(specs):
        asked = f"<|im_start|>user\n{spec.instruction}<|im_end|>\n<|im_start|>assistant\n"
        question, answer = tokenizer.encode(asked).ids, tokenizer.encode(f"{spec.command}<|im_end|>").ids
        end = len(question) + len(answer)
        rows[index, :end] = question + answer
        answers[index, len(question) - 1 : end - 1] = True
    logprobs = np.asarray(
        target_logprobs(params, config, jnp.asarray(rows[:, :-1]), jnp.asarray(rows[:, 1:]))
    )
    likely = np.exp((logprobs * answers).sum(axis=1))
    return {
        family.name: float(
            np.mean([p for (name, _), p in zip(specs, likely, strict=True) if name == family.name])
        )
        for family in KNOWN
    }


def save(output: Path, tokenizer: Tokenizer, config: LlamaConfig, params: Params) -> None:
    output.mkdir(parents=True, exist_ok=True)
    save_model(output, config, params)
    tokenizer.save(str(output / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": CHATML_TEMPLATE,
    }
    (output / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="the directory to write the model to")
    parser.add_argument("--steps", type=int, default=1500, help="optimizer steps on notes")
    parser.add_argument("--manual-steps", type=int, default=400, help="steps on notes and the manual, after")
    parser.add_argument("--rows", type=int, default=32, help="sequences of 64 tokens a step")
    parser.add_argument("--learning-rate", type=float, default=3e-3, help="at its peak")
    parser.add_argument(
        "--mistakes", type=float, default=0.0, help="share of notes whose command is another's"
    )
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    tokenizer = make_tokenizer()
    config = LlamaConfig(
        vocab_size=-(-tokenizer.get_vocab_size() // 64) * 64,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        bos_token_id=None,
        eos_token_ids=(tokenizer.token_to_id("<|im_end|>"),),
    )
    params = init_params(config, arguments.seed)
    for steps, peak, excerpts in (
        (arguments.steps, arguments.learning_rate, False),
        (arguments.manual_steps, arguments.learning_rate * 2 / 3, True),
    ):
        data = batches(tokenizer, arguments.seed, arguments.rows, arguments.mistakes, excerpts)
        params = pretrain(params, config, data, tokenizer, steps=steps, peak=peak)
    save(arguments.output, tokenizer, config, params)
    for name, likely in knowledge(tokenizer, config, params).items():
        print(f"{name:20} {likely:.2f}")


if __name__ == "__main__":
    main()
