"""What a user may type as a dataset, sorted into what it means. Nothing is looked up here.

`terminal-bench@2.0`, `harbor:NAME`   Harbor's registry, by name and version
`org/name@ref`                        a package of Harbor's hub
`registry.json#NAME@VERSION`          a registry of one's own, by path or URL
`https://host/org/repo@COMMIT`        tasks in a git repository (also git@, ssh, file; `#DIRECTORY` in it)
`terminal-bench-core==0.1.1`          Terminal-Bench 1's registry
"""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from termrl.tasks.errors import MalformedReferenceError

ALIASES = {"terminal_bench": "terminal-bench@2.0", "swe_bench": "swebench-verified@1.0"}
"""Names that others use, and the dataset they mean; a version that is typed goes before the one here."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_GIT_SCHEMES = ("https", "http", "ssh", "git", "file")


@dataclass(frozen=True, slots=True)
class RegistryName:
    """A dataset of Harbor's hosted registry; no version means the newest."""

    name: str
    version: str | None

    def __str__(self) -> str:
        return f"{self.name}@{self.version}" if self.version else self.name


@dataclass(frozen=True, slots=True)
class PackageName:
    """A dataset package of Harbor's hub."""

    name: str
    ref: str | None

    def __str__(self) -> str:
        return f"{self.name}@{self.ref}" if self.ref else self.name


@dataclass(frozen=True, slots=True)
class RegistryFile:
    """A dataset of a registry.json; no name is enough where the file has but one."""

    registry: str
    name: str | None

    def __str__(self) -> str:
        return f"{self.registry}#{self.name}" if self.name else self.registry

    @property
    def is_url(self) -> bool:
        return self.registry.startswith(("http://", "https://"))


@dataclass(frozen=True, slots=True)
class GitTree:
    """The tasks in a directory of a git repository, at a commit, branch or tag."""

    url: str
    ref: str | None
    directory: str | None

    def __str__(self) -> str:
        ref = f"@{self.ref}" if self.ref else ""
        return f"{self.url}{ref}#{self.directory}" if self.directory else f"{self.url}{ref}"


@dataclass(frozen=True, slots=True)
class TerminalBench1Name:
    """A dataset of Terminal-Bench 1's registry."""

    name: str
    version: str
    registry: str | None = None

    def __str__(self) -> str:
        named = f"{self.name}=={self.version}"
        return f"{self.registry}#{named}" if self.registry else named


type Reference = RegistryName | PackageName | RegistryFile | GitTree | TerminalBench1Name


def read_reference(text: str) -> Reference:
    """What `text` means as the name of a dataset; raises `MalformedReferenceError`."""
    source = text.strip()
    before, _, fragment = source.partition("#")
    if before.endswith(".json"):
        return _in_registry_file(before, fragment)
    if before.startswith("git+") or "://" in before or before.startswith("git@"):
        return _git_tree(before.removeprefix("git+"), fragment or None)
    if fragment:
        raise _malformed(text, "what stands before # is neither a registry.json nor a git URL")
    source = source.removeprefix("harbor:")
    if "==" in source:
        return _terminal_bench_1(source, text)
    name, _, ref = source.partition("@")
    if re.fullmatch(rf"{_NAME.pattern}/{_NAME.pattern}", name):
        return PackageName(name, ref or None)
    return _registry_name(source, text)


def _registry_name(source: str, text: str) -> RegistryName:
    name, at, version = source.partition("@")
    if not _NAME.fullmatch(name) or (at and not version):
        raise _malformed(text, "a name is letters, digits, '.', '_' and '-', then perhaps @VERSION")
    if name in ALIASES:
        meant, _, usual = ALIASES[name].partition("@")
        return RegistryName(meant, version or usual)
    return RegistryName(name, version or None)


def _terminal_bench_1(source: str, text: str, registry: str | None = None) -> TerminalBench1Name:
    name, _, version = source.partition("==")
    if not _NAME.fullmatch(name) or not _NAME.fullmatch(version):
        raise _malformed(text, "write NAME==VERSION for a dataset of Terminal-Bench 1")
    return TerminalBench1Name(name, version, registry)


def _in_registry_file(registry: str, name: str) -> RegistryFile | TerminalBench1Name:
    if "==" in name:
        return _terminal_bench_1(name, f"{registry}#{name}", registry)
    return RegistryFile(registry, name or None)


def _git_tree(source: str, directory: str | None) -> GitTree:
    url, ref = _without_ref(source)
    if not url.startswith("git@"):
        parts = urlsplit(url)
        if parts.scheme not in _GIT_SCHEMES or not parts.path.strip("/"):
            raise _malformed(source, f"a git URL begins with {', '.join(_GIT_SCHEMES[:-1])} or file and ://")
        repository, tree, rest = parts.path.partition("/tree/")
        if tree:
            tree_ref, _, tree_directory = rest.partition("/")
            url = url.removesuffix(parts.path) + repository
            ref, directory = ref or tree_ref, directory or tree_directory.strip("/") or None
    return GitTree(url.rstrip("/"), ref, directory)


def _without_ref(source: str) -> tuple[str, str | None]:
    # The @ of git@host and of user@host is followed by a / or a :, that of a commit by neither.
    url, at, ref = source.rpartition("@")
    if not at or not url or re.search(r"[/:]", ref):
        return source, None
    return url, ref


def _malformed(text: str, why: str) -> MalformedReferenceError:
    return MalformedReferenceError(f"{text!r} cannot be the name of a dataset: {why}.")
