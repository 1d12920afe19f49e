"""Machine code of our own against plain versions, in the tiles of every kind of processor."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from termrl.engine import norms, own_attention, products
from termrl.engine.attention import causal_attention
from termrl.engine.cached_attention import attend
from termrl.engine.kernels import calling, interface, registered
from termrl.engine.kernels.interface import installed_interface, read_interface
from termrl.engine.kernels.registered import Kernels, make_kernels, own_kernels
from termrl.engine.kernels.target import AVX2, AVX512, NEON, host_target
from termrl.engine.llama import rms_norm
from termrl.engine.norms import stable_rms_norm
from termrl.engine.own_attention import Piece
from termrl.engine.products import adapted_linear, frozen_linear, linear, pack, product

TARGETS = {"avx512": AVX512, "avx2": AVX2, "neon": NEON}


@cache
def kernels_of(name: str) -> Kernels:
    """LLVM makes vectors that this processor has not got out of those that it has."""
    known = installed_interface()
    assert known is not None
    return make_kernels(TARGETS[name], known, f"test_{name}")


@pytest.fixture(params=TARGETS)
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every product and attention of this test in the tiles of one kind of processor."""
    for module in (products, own_attention, norms):
        monkeypatch.setattr(module, "own_kernels", partial(kernels_of, request.param))
    return str(request.param)


def normal(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32))


def test_this_processor_has_kernels_of_its_own() -> None:
    """Else every test here would be of XLA."""
    assert host_target() in TARGETS.values()
    assert own_kernels() is not None


@pytest.mark.parametrize("rows", [1, 2, 7, 14, 29, 64])
@pytest.mark.parametrize(("inner", "outer"), [(1, 1), (5, 33), (64, 64), (130, 100), (1500, 70), (640, 257)])
def test_products_agree_with_numpy_in_every_layout(made: str, rows: int, inner: int, outer: int) -> None:
    x, weight = normal(rows, inner), normal(inner, outer, seed=1)
    expected = np.asarray(x, np.float64) @ np.asarray(weight, np.float64)
    found = [product(x, pack(weight)), product(x, weight), product(x, weight.T, turned=True)]
    for each in found:
        np.testing.assert_allclose(each, expected, atol=1e-5 * np.sqrt(inner) * np.abs(expected).max())
    # One chain of multiply-adds whatever the layout.
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.parametrize(("rows", "inner", "outer"), [(2300, 9, 70), (0, 4, 5)])
def test_products_of_very_many_rows_and_of_none(made: str, rows: int, inner: int, outer: int) -> None:
    x, weight = normal(rows, inner), normal(inner, outer, seed=1)
    for found in (product(x, pack(weight)), product(x, weight), product(x, weight.T, turned=True)):
        np.testing.assert_allclose(found, np.asarray(x) @ np.asarray(weight), atol=1e-4)


def test_a_rows_product_has_the_same_bits_whatever_is_beside_it(made: str) -> None:
    x, weight = normal(300, 700), normal(700, 130, seed=1)
    packed = pack(weight)
    whole = np.asarray(product(x, packed))
    for first, end in [(0, 1), (5, 12), (17, 60), (250, 300)]:
        np.testing.assert_array_equal(product(x[first:end], packed), whole[first:end])
        np.testing.assert_array_equal(product(x[first:end], weight), whole[first:end])


@pytest.mark.parametrize("count", [0, 1, 20, 33, 100])
def test_rows_that_do_not_count_are_zeros(made: str, count: int) -> None:
    x, weight = normal(33, 48), normal(48, 90, seed=1)
    found = np.asarray(product(x.reshape(3, 11, 48), pack(weight), count=jnp.int32(count))).reshape(33, 90)
    np.testing.assert_array_equal(found[:count], np.asarray(product(x, weight))[:count])
    assert not found[count:].any()


def plain_attention(q: jax.Array, past: Piece, new: Piece, seen: np.ndarray, own: np.ndarray) -> np.ndarray:
    keys = np.concatenate([past.keys, new.keys], axis=-1).astype(np.float64)
    values = np.concatenate([past.values, new.values], axis=-2).astype(np.float64)
    held, fresh = past.keys.shape[-1], new.keys.shape[-1]
    of_past = np.broadcast_to(np.arange(held) < seen[:, None, None], (*own.shape, held))
    sees = np.concatenate([of_past, np.arange(fresh) < own[:, :, None]], axis=-1)[:, None]
    scores = np.where(sees, np.asarray(q, np.float64) @ keys, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True) @ values)


def pieces(rows: int, groups: int, size: int, held: int, fresh: int) -> tuple[Piece, Piece]:
    def piece(positions: int, seed: int) -> Piece:
        return Piece(
            normal(rows, groups, size, positions, seed=seed),
            normal(rows, groups, positions, size, seed=seed + 1),
        )

    return piece(held, 1), piece(fresh, 3)


CASES = {
    "decoding": (3, 2, 3, 1, 64, 320, 8, [320, 100, 0]),
    "decoding with one query a group": (4, 4, 1, 1, 32, 160, 8, [160, 159, 33, 1]),
    "decoding with a head of no round size": (2, 1, 5, 1, 20, 70, 8, [70, 3]),
    "prefill": (2, 2, 3, 40, 64, 512, 40, [512, 257]),
    "prefill with nothing before it": (2, 2, 2, 70, 8, 0, 70, [0, 0]),
    "prefill with a big head": (1, 1, 2, 33, 128, 64, 33, [64]),
    "prefill with the biggest head": (1, 1, 1, 70, 256, 300, 70, [290]),
    "decoding with the biggest head": (2, 1, 7, 1, 256, 300, 8, [290, 7]),
}


@pytest.mark.parametrize("case", CASES)
def test_attention_agrees_with_a_plain_one(made: str, case: str) -> None:
    rows, groups, heads, steps, size, held, fresh, seen = CASES[case]
    q = 3 * normal(rows, groups, heads * steps, size) / np.sqrt(size)
    past, new = pieces(rows, groups, size, held, fresh)
    own = np.tile(np.arange(1, steps + 1), (rows, heads)) + (3 if steps == 1 else 0)
    expected = plain_attention(q, past, new, np.asarray(seen), own)
    found = attend(q, past, new, jnp.asarray(seen), jnp.asarray(own))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_attention_has_the_same_bits_whatever_is_beside_it_and_reads_only_what_is_seen(made: str) -> None:
    q = normal(3, 2, 6, 16)
    past, new = pieces(3, 2, 16, 300, 8)
    seen, own = jnp.asarray([270, 300, 5]), jnp.asarray(np.full((3, 6), 4))
    whole = np.asarray(attend(q, past, new, seen, own))
    longer = Piece(
        jnp.pad(past.keys, ((0, 0), (0, 0), (0, 0), (0, 100)), constant_values=np.nan),
        jnp.pad(past.values, ((0, 0), (0, 0), (0, 100), (0, 0)), constant_values=np.nan),
    )
    np.testing.assert_array_equal(attend(q, longer, new, seen, own), whole)
    for row in range(3):
        one = slice(row, row + 1)
        alone = attend(q[one], *(Piece(p.keys[one], p.values[one]) for p in (past, new)), seen[one], own[one])
        np.testing.assert_array_equal(alone, whole[one])


def test_a_query_that_is_not_wanted_gets_zeros_and_changes_nobody(made: str) -> None:
    q = normal(2, 2, 6, 16)
    past, new = pieces(2, 2, 16, 40, 8)
    seen, own = jnp.asarray([40, 40]), np.full((2, 6), 4)
    whole = np.asarray(attend(q, past, new, seen, jnp.asarray(own)))
    own[0, 2], own[1] = 0, 0
    found = np.asarray(attend(q, past, new, seen, jnp.asarray(own)))
    assert not found[0, :, 2].any()
    assert not found[1].any()
    np.testing.assert_array_equal(np.delete(found[0], 2, axis=1), np.delete(whole[0], 2, axis=1))


def test_extreme_scores_give_finite_weights(made: str) -> None:
    past, new = pieces(1, 1, 8, 600, 8)
    q = jnp.asarray([[[[1e3] * 8, [-1e3] * 8, [0.0] * 8]]], jnp.float32)
    found = attend(q, past, new, jnp.asarray([600]), jnp.asarray([[4, 4, 4]]))
    expected = plain_attention(q, past, new, np.asarray([600]), np.asarray([[4, 4, 4]]))
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_attention_has_the_same_bits_wherever_the_cache_ends_and_the_new_positions_begin(made: str) -> None:
    """So a prompt gives the same answers in one piece or in several, held from before or computed anew."""
    groups, size, whole = 2, 16, 620
    _, everything = pieces(1, groups, size, 0, whole)
    steps = 30
    q = normal(1, groups, steps, size)
    expected = None
    for held in (0, 1, 255, 256, 300, whole - steps):
        past = Piece(everything.keys[..., :held], everything.values[..., :held, :])
        new = Piece(everything.keys[..., held:], everything.values[..., held:, :])
        own = np.arange(whole - steps + 1, whole + 1)[None] - held
        found = np.asarray(attend(q, past, new, jnp.asarray([held]), jnp.asarray(own)))
        expected = found if expected is None else expected
        np.testing.assert_array_equal(found, expected)
        last = attend(q[:, :, -1:], past, new, jnp.asarray([held]), jnp.asarray(own[:, -1:]))
        np.testing.assert_array_equal(last, expected[:, :, -1:])


@pytest.mark.parametrize(("heads", "time", "size"), [(3, 300, 64), (1, 70, 20), (2, 513, 8), (2, 1, 16)])
def test_causal_attention_and_its_gradients_agree_with_autodiff_of_a_plain_one(
    made: str, heads: int, time: int, size: int
) -> None:
    batch, groups, at = 2, 2, np.arange(time)
    q, into = (normal(batch, groups * heads, time, size, seed=n) for n in (1, 2))
    k, v = (normal(batch, groups, time, size, seed=n) for n in (3, 4))
    # Two sequences in the first row; the second ends in padding, each token of which stands alone.
    start = np.stack([np.where(at < time // 3, 0, time // 3), np.where(at < time // 2, 0, at)])

    def plain(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        k, v = (jnp.repeat(x, heads, axis=1) for x in (k, v))
        seen = (at <= at[:, None]) & (at >= start[:, None, :, None])
        scores = jnp.where(seen, jnp.einsum("bhqe,bhse->bhqs", q, k) / np.sqrt(size), -jnp.inf)
        return jnp.einsum("bhqs,bhse->bhqe", jax.nn.softmax(scores), v)

    found, backward = jax.vjp(lambda *qkv: causal_attention(*qkv, jnp.asarray(start)), q, k, v)
    expected, plain_backward = jax.vjp(plain, q, k, v)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    for gradient, right in zip(backward(into), plain_backward(into), strict=True):
        np.testing.assert_allclose(gradient, right, atol=3e-5)


@pytest.mark.parametrize("size", [1, 8, 33, 64, 576])
def test_norms_agree_with_a_plain_one_and_have_the_same_bits_whatever_is_beside_a_row(
    made: str, size: int
) -> None:
    x, weight = normal(70, size), normal(size, seed=1)
    found = np.asarray(stable_rms_norm(x.reshape(7, 10, size), weight, 1e-5)).reshape(70, size)
    np.testing.assert_allclose(found, rms_norm(x, weight, 1e-5), rtol=1e-5, atol=1e-6)
    for row in (0, 31, 69):
        np.testing.assert_array_equal(stable_rms_norm(x[row : row + 1], weight, 1e-5)[0], found[row])


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("kind", [linear, frozen_linear, adapted_linear])
def test_gradients_agree_with_autodiff_of_a_plain_product(kind: object, turned: bool) -> None:
    x, weight, into = normal(21, 40), normal(40, 70, seed=1), normal(21, 70, seed=2)
    a, b = normal(40, 4, seed=3), normal(4, 70, seed=4)
    lying = weight.T if turned else weight

    def plain(x: jax.Array, weight: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
        updated = weight + a @ b - jax.lax.stop_gradient(a @ b)
        return (x @ updated * into).sum()

    expected = jax.grad(plain, argnums=(0, 1, 2, 3))(x, weight, a, b)
    close = partial(np.testing.assert_allclose, atol=1e-3, rtol=1e-4)
    if kind is linear:
        found = jax.grad(lambda x, w: (linear(x, w, turned) * into).sum(), argnums=(0, 1))(x, lying)
        close(found[0], expected[0])
        close(found[1].T if turned else found[1], expected[1])
    elif kind is frozen_linear:
        close(jax.grad(lambda x: (frozen_linear(x, lying, turned) * into).sum())(x), expected[0])
    else:
        found = jax.grad(
            lambda x, a, b: (adapted_linear(x, lying, a, b, turned) * into).sum(), argnums=(0, 1, 2)
        )(x, a, b)
        for mine, other in zip(found, (expected[0], expected[2], expected[3]), strict=True):
            close(mine, other)


FROM_MANY_THREADS = """
import sys
from concurrent.futures import ThreadPoolExecutor
import jax
import jax.numpy as jnp
import numpy as np
from termrl.engine.kernels.registered import own_kernels
from termrl.engine.products import pack, product

with ThreadPoolExecutor(8) as pool:
    # Whoever asks first, it is made once.
    [kernels] = set(map(id, pool.map(lambda _: own_kernels(), range(8))))
rng = np.random.default_rng(0)
weight = pack(jnp.asarray(rng.standard_normal((512, 640), np.float32)))
compute = jax.jit(lambda x: product(x, weight))
inputs = [jnp.asarray(rng.standard_normal((64, 512), np.float32)) for _ in range(40)]
expected = [np.asarray(compute(x)) for x in inputs]
with ThreadPoolExecutor(24) as pool:
    for _ in range(20):
        for found, right in zip(pool.map(compute, inputs), expected, strict=True):
            np.testing.assert_array_equal(found, right)
np.savez(sys.argv[1], *expected)
"""


def test_calls_from_many_threads_at_once_are_each_right_on_however_many_cores(tmp_path: Path) -> None:
    """More calls at once than are shared; in processes of their own, because XLA asks but once how many
    threads it may have."""
    found = []
    for threads in (1, 4):
        out = tmp_path / f"{threads}.npz"
        command = [sys.executable, "-c", FROM_MANY_THREADS, str(out)]
        environment = os.environ | {"NPROC": str(threads), "JAX_PLATFORMS": "cpu"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found.append(list(np.load(out).values()))
    for alone, shared in zip(*found, strict=True):
        np.testing.assert_array_equal(alone, shared)


def header() -> str:
    return (Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h").read_text()


def test_xlas_structures_are_laid_out_as_they_are_read() -> None:
    """Field by field from the header that came with XLA, eight bytes each but for pairs of integers."""
    text = header()
    sizes = {"XLA_FFI_Api_Version": 24, "XLA_FFI_Args": 40, "XLA_FFI_Rets": 40, "XLA_FFI_Attrs": 48}
    sizes |= {"XLA_FFI_InternalExtension": 24, "XLA_FFI_Handler_Traits": 4, "int": 4}

    def offsets(name: str) -> dict[str, int]:
        found = re.search(rf"struct {name} {{\n(.*?)\n( *_XLA_FFI_API_STRUCT_FIELD|}})", text, re.DOTALL)
        assert found is not None, name
        lines = [line.split("//")[0].strip() for line in found[1].splitlines()]
        fields = [line.rstrip(";").replace("const ", "").replace("struct ", "") for line in lines if line]
        at, places = 0, {}
        for field in fields:
            kind, called = field.rsplit(" ", 1)
            size = sizes.get(kind, 8)
            at = -(-at // min(size, 8)) * min(size, 8)
            places[called] = at
            at += size
        return places | {"end": at}

    frame, buffer = offsets("XLA_FFI_CallFrame"), offsets("XLA_FFI_Buffer")
    arguments = frame["args"] + offsets("XLA_FFI_Args")["args"]
    results = frame["rets"] + offsets("XLA_FFI_Rets")["rets"]
    assert (frame["extension_start"], frame["api"], frame["ctx"], arguments, results) == (
        calling._FRAME_EXTENSION,
        calling._FRAME_API,
        calling._FRAME_CONTEXT,
        calling._FRAME_ARGUMENTS,
        calling._FRAME_RESULTS,
    )
    assert (buffer["data"], buffer["dims"]) == (calling._BUFFER_DATA, calling._BUFFER_SIZES)
    version = offsets("XLA_FFI_Api_Version")["major_version"]
    metadata = offsets("XLA_FFI_Metadata")
    assert metadata["api_version"] + version == calling._METADATA_VERSION
    assert metadata["traits"] == calling._METADATA_TRAITS
    assert offsets("XLA_FFI_Metadata_Extension")["metadata"] == calling._EXTENSION_METADATA
    assert re.search(rf"XLA_FFI_Extension_Metadata = {calling._METADATA_KIND}\b", text)
    api = offsets("XLA_FFI_Api")
    assert api["api_version"] + version == calling._API_VERSION
    assert api["end"] == interface._CALLS_BEGIN
    assert offsets("XLA_FFI_ThreadPool_Schedule_Args")["end"] == calling._SCHEDULE_BYTES
    assert offsets("XLA_FFI_ThreadPool_NumThreads_Args")["end"] == calling._THREADS_BYTES


def test_the_calls_that_share_work_are_found_where_the_header_has_them() -> None:
    found = read_interface(header())
    assert found is not None
    moved = header().replace(
        "  _XLA_FFI_API_STRUCT_FIELD(XLA_FFI_ThreadPool_Schedule);",
        "  _XLA_FFI_API_STRUCT_FIELD(XLA_FFI_Another);\n"
        "  _XLA_FFI_API_STRUCT_FIELD(XLA_FFI_ThreadPool_Schedule);",
    )
    other = read_interface(moved)
    assert other == interface.Interface(found.schedule + 8, found.thread_count + 8)


def test_an_interface_or_a_processor_that_is_not_known_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = header()
    assert read_interface(text.replace("XLA_FFI_API_MAJOR 0", "XLA_FFI_API_MAJOR 1")) is None
    assert read_interface(text.replace("XLA_FFI_ThreadPool_NumThreads", "XLA_FFI_Other")) is None
    monkeypatch.setattr(registered, "host_target", lambda: None)
    assert registered._made.__wrapped__() is None
    monkeypatch.setattr(jax.ffi, "include_dir", lambda: str(tmp_path))
    assert installed_interface.__wrapped__() is None


def test_where_there_are_no_kernels_xla_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (products, own_attention, norms):
        monkeypatch.setattr(module, "own_kernels", lambda: None)
    x, weight = normal(9, 30), normal(30, 50, seed=1)
    for layout in (pack(weight), weight):
        np.testing.assert_allclose(product(x, layout), np.asarray(x) @ np.asarray(weight), atol=1e-5)
    np.testing.assert_allclose(
        stable_rms_norm(x, weight[:, 0], 1e-5), rms_norm(x, weight[:, 0], 1e-5), atol=1e-5
    )
    # More queries than are computed at once, one of which is not wanted.
    q = normal(2, 2, 400, 16)
    past, new = pieces(2, 2, 16, 1500, 8)
    seen, own = np.asarray([1400, 3]), np.full((2, 400), 4)
    expected = plain_attention(q, past, new, seen, own)
    own[0, 7] = 0
    found = np.array(attend(q, past, new, jnp.asarray(seen), jnp.asarray(own)))
    assert np.isfinite(found).all()
    found[0, :, 7] = expected[0, :, 7]
    np.testing.assert_allclose(found, expected, atol=1e-5)
