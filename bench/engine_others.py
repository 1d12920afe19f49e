"""What `engine.py --against` measures beside the engine: llama.cpp and torch on the same work.

Neither is installed with termrl. One that is missing is named, with what installs it.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from termrl.engine.catalog import resolve_model


def against_torch(model: str) -> dict[str, float]:
    """Tokens a second of torch, transformers and peft on the same work."""
    import torch  # type: ignore[import-not-found]
    from peft import LoraConfig, get_peft_model  # type: ignore[import-not-found]
    from transformers import AutoModelForCausalLM

    found: dict[str, float] = {}
    loaded = AutoModelForCausalLM.from_pretrained(resolve_model(model), dtype=torch.float32)
    with torch.no_grad():
        for name, count, length, tokens in (("decode 32", 32, 8, 48), ("prefill", 4, 512, 1)):
            prompt = torch.randint(3, 1000, (count, length))

            def generate(prompt: Any = prompt, tokens: int = tokens) -> None:
                loaded.generate(prompt, do_sample=True, max_new_tokens=tokens, min_new_tokens=tokens)

            work = count * (tokens if name != "prefill" else length)
            found[f"torch {name}"] = work / best_of_two(generate)
    network = get_peft_model(loaded, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"))
    for count, length in ((8, 128), (1, 2048)):
        tokens = torch.randint(3, 1000, (count, length))

        def train_once(tokens: Any = tokens) -> None:
            network(input_ids=tokens, labels=tokens).loss.backward()

        found[f"torch train {count}x{length}"] = count * length / best_of_two(train_once)
    return found


def against_llama_cpp(model: str) -> dict[str, float]:
    """Tokens a second of llama.cpp on the same work, in float32."""
    import llama_cpp  # type: ignore[import-not-found]

    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "model.gguf"
        write_gguf(resolve_model(model), file)
        handle = llama_cpp.Llama(str(file), n_ctx=4096, n_batch=512, n_threads=os.cpu_count(), verbose=False)

    def prefill_once() -> None:
        handle.reset()
        handle.eval(list(range(3, 515)))

    found["llama.cpp prefill"] = 512 / best_of_two(prefill_once)
    context = context_for(llama_cpp, handle, 32)
    found["llama.cpp decode 32"] = 32 * 48 / best_of_two(lambda: decode_together(llama_cpp, context, 32, 48))
    llama_cpp.llama_free(context)
    return found


def context_for(llama_cpp: Any, handle: Any, count: int) -> Any:
    """A context of its own for so many sequences: the one that the class makes has room for one."""
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx, settings.n_seq_max = 128 * count, count
    settings.n_threads = settings.n_threads_batch = os.cpu_count()
    return llama_cpp.llama_init_from_model(handle.model, settings)


def decode_together(llama_cpp: Any, context: Any, count: int, tokens: int) -> None:
    """`tokens` steps of `count` sequences in one batch; which token is fed does not change the work."""
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
    batch = llama_cpp.llama_batch_init(count, 0, 1)
    batch.n_tokens = count
    for position in range(tokens):
        for row in range(count):
            batch.token[row], batch.pos[row], batch.n_seq_id[row] = 3 + row, position, 1
            batch.seq_id[row][0], batch.logits[row] = row, 1
        if llama_cpp.llama_decode(context, batch):
            raise RuntimeError("llama.cpp could not decode the batch.")
    llama_cpp.llama_batch_free(batch)


def write_gguf(directory: Path, file: Path) -> None:
    """A Llama-style model as GGUF in float32, with no vocabulary."""
    import gguf  # type: ignore[import-untyped]

    from termrl.engine.weights import hf_tensors, load_model

    config, params = load_model(directory)
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in hf_tensors(config, params).items():
        # The order of a head's rows does not matter here: nothing is compared but time.
        writer.add_tensor(names.get_name(name, (".weight",)), np.ascontiguousarray(tensor, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def best_of_two(run: Callable[[], None]) -> float:
    run()
    taken = []
    for _ in range(2):
        begin = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begin)
    return min(taken)


OTHERS: dict[str, tuple[Callable[[str], dict[str, float]], str]] = {
    "llama.cpp": (against_llama_cpp, "llama-cpp-python"),
    "torch": (against_torch, "torch peft"),
}
"""Name -> what measures it, and what to install for that."""


def measure_others(names: Sequence[str], model: str, say: Callable[[str], None]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in names:
        run, packages = OTHERS[name]
        try:
            rates = run(model)
        except ModuleNotFoundError as error:
            say(f"{name}: not measured, there is no module {error.name!r} here; pip install {packages}")
            continue
        for label, rate in rates.items():
            say(f"{label:<24} {rate:>10.1f} tokens/s")
        found |= rates
    return found
