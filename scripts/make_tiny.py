"""Makes `termrl/tiny`: a tokenizer from the agent's own text, and a small Llama pre-trained on shell notes.

The notes are what a shell primer has: a request in words, then a command. They use names of the training side
only, and only the families that have training tasks. A note's command is not always the right one
(`--mistakes`), as in text at large: which command works is left to be learned in a terminal. The model sees
nothing of the agent's format here; its tokenizer does, so that the agent's long prompt is short.

    .venv/bin/python scripts/make_tiny.py --output src/termrl/engine/tiny
"""

import argparse
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from harbor.agents.terminus_2 import Terminus2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from termrl.engine.llama import LlamaConfig, Params, init_params, target_logprobs
from termrl.engine.weights import save_model
from termrl.learn.demonstrations import demonstration
from termrl.policy.chatml import CHATML_TEMPLATE
from termrl.tasks.families import KNOWN, Family
from termrl.tasks.names import CONSONANTS, VOWELS, held_out_name, train_name

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CONTEXT = 2048
BLANK = "@@"


def agent_phrases() -> list[str]:
    """The fixed passages of Terminus-2's prompts and the pieces of its answers' JSON: each becomes one token."""
    asker: Any = SimpleNamespace(options=SimpleNamespace(parser_name="json"))
    template = Terminus2._get_prompt_template_path(asker).read_text()
    prompt = template.format(instruction=BLANK, terminal_state=f"Current Terminal Screen:\n{BLANK}")
    confirmation = Terminus2._get_completion_confirmation_message(asker, f"New Terminal Output:\n{BLANK}")
    passages = [piece.lstrip("\n") for text in (prompt, confirmation) for piece in text.split(BLANK)]
    paragraphs = [part for passage in passages for part in re.findall(r".*?\n\n|.+", passage, re.S)]
    values = r"[A-Z][a-z ]+\.|0\.1|true|" + BLANK
    answers = [piece for text in demonstration([BLANK]) for piece in re.split(f"({values})", text)]
    screens = ["root@sandbox:/app# ", "New Terminal Output:\n", "Current Terminal Screen:\n"]
    warnings = [
        "Previous response had parsing errors:\n",
        "Previous response had warnings:\n",
        "ERROR: ",
        "WARNINGS: ",
    ]
    roles = ["system", "user", "assistant"]
    pieces = [*paragraphs, *answers, *screens, *warnings, *roles]
    return list(dict.fromkeys(piece for piece in pieces if len(piece) > 1 and piece != BLANK))


def words() -> list[str]:
    """The words of requests and commands."""
    texts = [re.sub(r"\{\w+\}", "", f"{family.phrasing} {family.command}") for family in KNOWN]
    return sorted({word for text in texts for word in re.findall(r"[A-Za-z]+", text)})


def make_tokenizer() -> Tokenizer:
    """Bytes, syllables, words and the agent's phrases. Whatever is unknown is spelled."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    syllables = [(consonant, vowel) for consonant in CONSONANTS for vowel in VOWELS]
    vocabulary = {token: index for index, token in enumerate([*alphabet, *map("".join, syllables)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=syllables))
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
    """A note as it may stand in text: bare, as a question and its answer, quoted, or at a prompt among others."""
    request, command = note(rng, mistakes)
    noise = " ".join(train_name(rng) for _ in range(rng.choice((0, 0, 0, 1, 2))))
    opening = rng.choice(['"', "'", "`", "$ ", "# ", "> ", ": ", "(", "", "root@sandbox:/app# "])
    shape = rng.randrange(4)
    if shape == 0:
        return f"{request}\n{noise}\n{opening}{command}\n<|endoftext|>"
    if shape == 1:
        return f"<|im_start|>user\n{request}<|im_end|>\n<|im_start|>assistant\n{command}<|im_end|>\n<|endoftext|>"
    if shape == 2:
        return (
            f"<|im_start|>user\n{noise}\n{request}\n{noise}\n<|im_end|>\n<|im_start|>assistant\n"
            f"{opening}{command}{opening}<|im_end|>\n<|endoftext|>"
        )
    return f"{noise}\n{request}{opening}{command}{opening}\n<|endoftext|>"


def batches(tokenizer: Tokenizer, seed: int, rows: int, length: int, mistakes: float) -> Iterator[np.ndarray]:
    """Endless [rows, length + 1] of documents one after another."""
    rng = Random(seed)
    stream: list[int] = []
    while True:
        while len(stream) < rows * (length + 1):
            for encoding in tokenizer.encode_batch([document(rng, mistakes) for _ in range(256)]):
                stream += encoding.ids
        cut = rows * (length + 1)
        yield np.asarray(stream[:cut], np.int32).reshape(rows, length + 1)
        stream = stream[cut:]


def pretrain(
    config: LlamaConfig, data: Iterator[np.ndarray], *, steps: int, peak: float, seed: int
) -> Params:
    """AdamW with warm-up and cosine decay on next-token prediction."""
    params = init_params(config, seed)
    moments = (jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params))

    def loss(params: Params, rows_B_T: jax.Array) -> jax.Array:
        return -target_logprobs(params, config, rows_B_T[:, :-1], rows_B_T[:, 1:]).mean()

    @jax.jit
    def update(params: Params, moments: Any, rows_B_T: jax.Array, rate: jax.Array, count: jax.Array) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, rows_B_T)
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(gradient)))
        gradient = jax.tree.map(lambda g: g * jnp.minimum(1.0, 1.0 / norm), gradient)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradient)
        second = jax.tree.map(lambda v, g: 0.98 * v + 0.02 * g * g, moments[1], gradient)
        params = jax.tree.map(
            lambda p, m, v: (
                p - rate * (m / (1 - 0.9**count) / (jnp.sqrt(v / (1 - 0.98**count)) + 1e-8) + 0.01 * p)
            ),
            params,
            first,
            second,
        )
        return params, (first, second), value

    started = time.monotonic()
    for step in range(1, steps + 1):
        rate = peak * min(1.0, step / 50) * (0.05 + 0.95 * 0.5 * (1 + np.cos(np.pi * step / steps)))
        params, moments, value = update(params, moments, next(data), jnp.float32(rate), jnp.float32(step))
        if step % 100 == 0 or step == 1:
            print(f"step {step}/{steps}: loss {value:.4f}, {time.monotonic() - started:.0f} s", flush=True)
    return params


def knowledge(tokenizer: Tokenizer, config: LlamaConfig, params: Params) -> None:
    """Prints, per family, how likely the model finds the right command for names it has never seen."""
    rng = Random(99)
    for family in KNOWN:
        probabilities = []
        for _ in range(8):
            spec = family.sample(rng, held_out_name)
            question = tokenizer.encode(
                f"<|im_start|>user\n{spec.instruction}<|im_end|>\n<|im_start|>assistant\n"
            ).ids
            answer = tokenizer.encode(f"{spec.command}<|im_end|>").ids
            row = np.zeros((1, 96), np.int32)
            row[0, : len(question) + len(answer)] = question + answer
            logprobs = target_logprobs(params, config, jnp.asarray(row[:, :-1]), jnp.asarray(row[:, 1:]))
            probabilities.append(
                float(jnp.exp(logprobs[0, len(question) - 1 : len(question) + len(answer) - 1].sum()))
            )
        print(f"{family.name:20} {np.mean(probabilities):.2f}")


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
    parser.add_argument("--steps", type=int, default=3000, help="optimizer steps")
    parser.add_argument("--rows", type=int, default=24, help="sequences of 96 tokens a step")
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
    data = batches(tokenizer, arguments.seed, arguments.rows, 96, arguments.mistakes)
    params = pretrain(config, data, steps=arguments.steps, peak=arguments.learning_rate, seed=arguments.seed)
    save(arguments.output, tokenizer, config, params)
    knowledge(tokenizer, config, params)


if __name__ == "__main__":
    main()
