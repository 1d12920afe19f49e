"""What a user types as a dataset, and what it means."""

import pytest

from termrl.tasks.errors import MalformedReferenceError
from termrl.tasks.references import (
    GitTree,
    PackageName,
    Reference,
    RegistryFile,
    RegistryName,
    TerminalBench1Name,
    read_reference,
)

COMMIT = "53ff2b87d621bdb97b455671f2bd9728b7d86c11"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("terminal-bench@2.0", RegistryName("terminal-bench", "2.0")),
        ("terminal-bench", RegistryName("terminal-bench", None)),
        ("terminal_bench", RegistryName("terminal-bench", "2.0")),
        ("terminal_bench@2.1", RegistryName("terminal-bench", "2.1")),
        ("harbor:terminal-bench@2.0", RegistryName("terminal-bench", "2.0")),
        ("swebench-verified@1.0", RegistryName("swebench-verified", "1.0")),
        ("swe_bench", RegistryName("swebench-verified", "1.0")),
        ("org/name@latest", PackageName("org/name", "latest")),
        ("org/name@sha256:ab12", PackageName("org/name", "sha256:ab12")),
        ("org/name", PackageName("org/name", None)),
        ("harbor:org/name@3", PackageName("org/name", "3")),
        ("registry.json", RegistryFile("registry.json", None)),
        ("my/registry.json#hello@1.0", RegistryFile("my/registry.json", "hello@1.0")),
        ("http://127.0.0.1:80/r.json#hello", RegistryFile("http://127.0.0.1:80/r.json", "hello")),
        ("https://host/org/repo", GitTree("https://host/org/repo", None, None)),
        (f"https://host/org/repo.git@{COMMIT}", GitTree("https://host/org/repo.git", COMMIT, None)),
        ("https://me@host/org/repo", GitTree("https://me@host/org/repo", None, None)),
        ("https://host/org/repo/tree/main/a/b", GitTree("https://host/org/repo", "main", "a/b")),
        ("git@host:org/repo.git@v1#tasks", GitTree("git@host:org/repo.git", "v1", "tasks")),
        ("git@host:org/repo.git", GitTree("git@host:org/repo.git", None, None)),
        (f"git+file:///a/repo@{COMMIT}#x", GitTree("file:///a/repo", COMMIT, "x")),
        ("terminal-bench-core==0.1.1", TerminalBench1Name("terminal-bench-core", "0.1.1")),
        ("old.json#core==0.1", TerminalBench1Name("core", "0.1", "old.json")),
    ],
)
def test_what_is_typed_means_one_thing(typed: str, meant: Reference) -> None:
    assert read_reference(typed) == meant


@pytest.mark.parametrize(
    "typed", ["", "a b", "name@", "/==", "name#fragment", "ftp://host/org/repo", "a/b/c", "https://"]
)
def test_what_can_be_no_name_is_refused_in_a_sentence(typed: str) -> None:
    with pytest.raises(MalformedReferenceError, match=r"cannot be the name of a dataset: .*\.$"):
        read_reference(typed)


@pytest.mark.parametrize("typed", ["org/name@3", "a@1.0", "https://h/o/r@main#d", "r.json#n@1", "c==0.1"])
def test_a_reference_written_out_is_the_same_reference(typed: str) -> None:
    assert read_reference(str(read_reference(typed))) == read_reference(typed)
