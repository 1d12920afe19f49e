"""Datasets by name, through Harbor's own clients: a registry on loopback, git repositories on disk."""

import io
import json
import shutil
import socket
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harbor.publisher.packager import Packager

from harbor_registry import Registry
from termrl.cli import main
from termrl.errors import UserError
from termrl.tasks import load_dataset, load_harbor_tasks
from termrl.tasks.errors import (
    FetchError,
    MalformedRegistryError,
    OutwardLinkError,
    RegistryUnreachableError,
    StaleCacheError,
    UnknownDatasetError,
    UnknownRevisionError,
)
from termrl.tasks.fetching import fetch
from termrl.tasks.records import all_records, find_record, harbor_cache
from termrl.tasks.references import read_reference
from termrl.tasks.removal import remove_dataset

type Answer = Callable[[dict[str, list[str]], Any], Any]


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    served = Registry()
    monkeypatch.setattr("harbor.registry.client.harbor.harbor.HARBOR_SUPABASE_URL", served.url)
    monkeypatch.setattr("harbor.auth.client.SUPABASE_URL", served.url)
    monkeypatch.setattr("harbor.auth.client._cached", None)
    yield served
    served.close()


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> str:
    """An address on loopback where nobody listens, as the registry's."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    monkeypatch.setattr("harbor.registry.client.harbor.harbor.HARBOR_SUPABASE_URL", url)
    return url


@pytest.fixture
def repository(git_repository: Any, make_task: Any) -> Any:
    for name in ("hello", "goodbye"):
        make_task(git_repository.path / "tasks" / name)
    git_repository.head = git_repository.commit()
    return git_repository


def row(repository: Any, name: str, commit: str | None = None) -> dict[str, Any]:
    path = f"tasks/{name}"
    return {"name": name, "git_url": repository.url, "git_commit_id": commit or repository.head, "path": path}


def fetched(source: str) -> list[str]:
    return [task.task_name for task in load_harbor_tasks(source)]


def refused(error: pytest.ExceptionInfo[UserError]) -> str:
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)
    assert str(error.value).endswith(".")
    # What is refused leaves nothing behind that looks like a dataset.
    assert all_records() == []
    return str(error.value)


def test_a_registry_name_is_fetched_once_and_works_offline_afterwards(
    home: Path, registry: Registry, repository: Any
) -> None:
    registry.datasets["greetings", "1.0"] = [row(repository, "hello"), row(repository, "goodbye")]
    heard: list[tuple[str, int, int | None]] = []
    tasks = load_harbor_tasks("greetings@1.0", told=lambda *words: heard.append(words))
    assert sorted(task.task_name for task in tasks) == ["goodbye", "hello"]
    assert all(task.task_dir.is_relative_to(home / ".cache" / "harbor" / "tasks") for task in tasks)
    assert heard[-1] == ("fetching greetings@1.0", 2, 2)
    registry.close()
    shutil.rmtree(repository.path)
    assert fetched("greetings@1.0") == fetched("harbor:greetings@1.0") == [t.task_name for t in tasks]


def test_a_name_without_a_version_is_the_newest_of_it(
    home: Path, registry: Registry, repository: Any
) -> None:
    registry.datasets["greetings", "1.0"] = [row(repository, "hello")]
    registry.datasets["greetings", "1.10"] = [row(repository, "goodbye")]
    registry.datasets["greetings", "1.9"] = [row(repository, "hello")]
    assert fetched("greetings") == ["goodbye"]
    record = find_record("greetings")
    assert record is not None
    assert record.version == "1.10"


def test_the_names_others_use_are_known(home: Path, registry: Registry, repository: Any) -> None:
    registry.datasets["terminal-bench", "2.0"] = [row(repository, "hello")]
    registry.datasets["swebench-verified", "1.0"] = [row(repository, "goodbye")]
    assert fetched("terminal_bench") == ["hello"]
    assert fetched("swe_bench") == ["goodbye"]


def test_a_package_is_fetched_verified_and_works_offline(
    home: Path, registry: Registry, make_task: Any, tmp_path: Path
) -> None:
    task_dir = make_task(tmp_path / "hello", config='[task]\nname = "someone/hello"\n')
    digest, _ = Packager.compute_content_hash(task_dir)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        tar.add(task_dir, arcname=".")
    registry.packages["hello"] = (digest, archive.getvalue())
    registry.files["/storage/v1/object/packages/hello.tar.gz"] = archive.getvalue()
    assert fetched("someone/greetings@latest") == ["someone/hello"]
    assert (harbor_cache() / "packages" / "someone" / "hello" / digest / "task.toml").is_file()
    assert [path.name for path in (harbor_cache() / "packages").iterdir()] == ["someone"]
    registry.close()
    assert fetched("someone/greetings@latest") == ["someone/hello"]


def test_a_package_that_is_not_what_its_digest_says_never_reaches_the_cache(
    home: Path, registry: Registry, make_task: Any, tmp_path: Path
) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        tar.add(make_task(tmp_path / "hello"), arcname=".")
    registry.packages["hello"] = ("ab" * 32, archive.getvalue())
    registry.files["/storage/v1/object/packages/hello.tar.gz"] = archive.getvalue()
    with pytest.raises(FetchError) as error:
        load_harbor_tasks("someone/greetings")
    assert "someone/hello is not what its digest says" in refused(error)
    assert list((harbor_cache() / "packages").iterdir()) == []


@pytest.mark.parametrize("by_url", [True, False])
def test_a_registry_of_ones_own_is_a_source(
    home: Path, registry: Registry, repository: Any, tmp_path: Path, by_url: bool
) -> None:
    rows = [
        {"name": "greetings", "version": "1.0", "description": "", "tasks": [row(repository, "hello")]},
        {"name": "others", "version": "2", "description": "", "tasks": [row(repository, "goodbye")]},
    ]
    path = tmp_path / "registry.json"
    path.write_text(json.dumps(rows))
    registry.files["/registry.json"] = path.read_bytes()
    source = f"{registry.url}/registry.json" if by_url else str(path)
    assert fetched(f"{source}#greetings@1.0") == ["hello"]
    assert fetched(f"{source}#others") == ["goodbye"]
    with pytest.raises(UnknownDatasetError, match=r"has 2 datasets: write .*#NAME for one of greetings@1.0"):
        fetched(source)
    with pytest.raises(UnknownDatasetError, match=r"did you mean greetings@1.0\?"):
        fetched(f"{source}#greeting")


def test_tasks_that_a_registry_has_beside_it_are_used_where_they_are(
    home: Path, make_task: Any, tmp_path: Path
) -> None:
    task_dir = make_task(tmp_path / "mine" / "hello")
    rows = [
        {"name": "mine", "version": "1", "description": "", "tasks": [{"name": "hello", "path": "hello"}]}
    ]
    (tmp_path / "mine" / "registry.json").write_text(json.dumps(rows))
    source = str(tmp_path / "mine" / "registry.json")
    assert [task.task_dir for task in load_harbor_tasks(source)] == [task_dir]
    (task_dir / "instruction.md").write_text("Say hello, please")
    assert load_harbor_tasks(source)[0].instruction == "Say hello, please"
    remove_dataset(source)
    assert (task_dir / "instruction.md").is_file()


@pytest.mark.parametrize("text", ["{", "{}", '[{"name": 3}]', "[3]"])
def test_a_file_that_is_no_registry_is_refused(home: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "registry.json").write_text(text)
    with pytest.raises(MalformedRegistryError) as error:
        load_harbor_tasks(f"{tmp_path}/registry.json#hello")
    assert "is not a registry" in refused(error)


def test_a_git_repository_is_a_source_at_a_commit_a_branch_or_a_directory(
    home: Path, repository: Any, make_task: Any
) -> None:
    before = repository.head
    make_task(repository.path / "tasks" / "third")
    make_task(repository.path / "more" / "deeply" / "fourth")
    repository.commit()
    assert sorted(fetched(f"{repository.url}@{before}")) == ["goodbye", "hello"]
    assert sorted(fetched(f"{repository.url}@main")) == ["goodbye", "hello", "third"]
    assert fetched(f"{repository.url}#more") == ["fourth"]
    assert fetched(f"{repository.url}/tree/main/more/deeply") == ["fourth"]


def test_tasks_at_the_top_of_a_repository_are_found(home: Path, git_repository: Any, make_task: Any) -> None:
    make_task(git_repository.path / "hello")
    git_repository.commit()
    assert fetched(git_repository.url) == ["hello"]


@pytest.mark.parametrize("ref", ["0" * 40, "no-such-branch", "abc1234"])
def test_a_commit_that_does_not_exist_is_refused(home: Path, repository: Any, ref: str) -> None:
    with pytest.raises(UnknownRevisionError) as error:
        load_harbor_tasks(f"{repository.url}@{ref}")
    assert repository.url in refused(error)


def test_a_commit_that_a_registry_made_up_is_refused(home: Path, registry: Registry, repository: Any) -> None:
    registry.datasets["greetings", "1.0"] = [row(repository, "hello", commit="f" * 40)]
    with pytest.raises(UnknownRevisionError) as error:
        load_harbor_tasks("greetings@1.0")
    assert "no such commit" in refused(error)


def test_a_repository_that_is_not_there_is_refused(home: Path, tmp_path: Path) -> None:
    with pytest.raises(FetchError) as error:
        load_harbor_tasks(f"file://{tmp_path}/gone/tasks.git")
    assert "There is no git repository at" in refused(error)


def test_a_link_that_leads_out_of_a_task_in_a_repository_is_refused(home: Path, repository: Any) -> None:
    (repository.path / "tasks" / "hello" / "tests" / "outside").symlink_to("../../../../etc")
    repository.commit()
    with pytest.raises(OutwardLinkError) as error:
        load_harbor_tasks(repository.url)
    assert "outside" in refused(error)


def test_a_task_that_a_registry_names_and_the_repository_has_not_is_named(
    home: Path, registry: Registry, repository: Any
) -> None:
    registry.datasets["greetings", "1.0"] = [row(repository, "hello"), row(repository, "farewell")]
    with pytest.raises(FetchError) as error:
        load_harbor_tasks("greetings@1.0")
    assert "names a task that is not where it should be" in refused(error)
    assert "farewell" in str(error.value)


def test_a_registry_that_is_not_there_is_refused(home: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownDatasetError) as error:
        load_harbor_tasks(f"{tmp_path}/registry.json#hello")
    assert refused(error) == f"There is no {tmp_path}/registry.json: check the path."


def test_an_unknown_name_is_refused_with_the_nearest_and_where_it_was_looked_for(
    home: Path, registry: Registry, repository: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    registry.datasets["terminal-bench", "2.0"] = [row(repository, "hello")]
    with pytest.raises(UnknownDatasetError) as error:
        load_harbor_tasks("terminal-bensh@2.0")
    message = refused(error)
    assert "did you mean terminal-bench@2.0?" in message
    assert "in Harbor's registry" in message
    assert f"no directory {tmp_path / 'terminal-bensh@2.0'}" in message


@pytest.mark.parametrize("name", ["terminal-bench@2.0", "terminal-bench"])
def test_without_a_network_a_name_that_is_not_here_yet_is_refused(
    home: Path, nowhere: str, name: str
) -> None:
    with pytest.raises(RegistryUnreachableError) as error:
        load_harbor_tasks(name)
    message = refused(error)
    assert f"{name} is not on this machine yet and Harbor's registry cannot be reached" in message
    assert "termrl/basics" in message


def test_without_a_network_a_registry_by_url_is_refused(home: Path, nowhere: str) -> None:
    with pytest.raises(RegistryUnreachableError) as error:
        load_harbor_tasks(f"{nowhere}/registry.json#x")
    assert "cannot be reached" in refused(error)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: shutil.rmtree(path), "is gone"),
        (lambda path: (path / "environment" / "Dockerfile").unlink(), "has 4 of its 5 files"),
        (lambda path: (path / "tests" / "test.sh").write_text("exit"), "was changed"),
    ],
)
def test_an_entry_of_the_cache_that_is_no_longer_whole_is_named_left_out_or_fetched_again(
    home: Path, registry: Registry, repository: Any, damage: Callable[[Path], None], words: str
) -> None:
    registry.datasets["greetings", "1.0"] = [row(repository, "hello"), row(repository, "goodbye")]
    tasks = {task.task_name: task for task in load_harbor_tasks("greetings@1.0")}
    path = tasks["hello"].task_dir
    damage(path)
    with pytest.raises(StaleCacheError) as error:
        load_harbor_tasks("greetings@1.0")
    assert f"{path} {words}; `termrl tasks pull greetings@1.0` fetches it again" in str(error.value)
    left = load_dataset("greetings@1.0", on_bad_task="skip")
    assert [task.task_name for task in left.tasks] == ["goodbye"]
    assert [bad.path for bad in left.skipped] == [path]
    fetch(read_reference("greetings@1.0"), lambda *words: None)
    assert sorted(fetched("greetings@1.0")) == ["goodbye", "hello"]


def test_what_harbor_left_half_in_its_cache_is_fetched_again_and_not_trusted(
    home: Path, registry: Registry, repository: Any
) -> None:
    registry.datasets["greetings", "1.0"] = [row(repository, "hello")]
    (task,) = load_harbor_tasks("greetings@1.0")
    shutil.rmtree(home / ".cache" / "termrl")
    (task.task_dir / "tests" / "test.sh").unlink()
    assert fetched("greetings@1.0") == ["hello"]
    assert (task.task_dir / "tests" / "test.sh").is_file()


def test_a_fetch_that_is_broken_off_is_never_taken_for_the_whole(
    home: Path, registry: Registry, repository: Any
) -> None:
    gone = {**row(repository, "goodbye"), "git_url": f"file://{repository.path}-not-there"}
    registry.datasets["greetings", "1.0"] = [row(repository, "hello"), gone]
    with pytest.raises(FetchError) as error:
        load_harbor_tasks("greetings@1.0")
    refused(error)
    registry.datasets["greetings", "1.0"] = [row(repository, "hello"), row(repository, "goodbye")]
    assert sorted(fetched("greetings@1.0")) == ["goodbye", "hello"]


def test_removing_a_dataset_leaves_what_another_shares(
    home: Path, registry: Registry, repository: Any
) -> None:
    registry.datasets["greetings", "1.0"] = [row(repository, "hello"), row(repository, "goodbye")]
    registry.datasets["greetings", "1.1"] = [row(repository, "hello")]
    fetched("greetings@1.0")
    fetched("greetings@1.1")
    assert remove_dataset("greetings@1.0") == 1
    assert [record.dataset for record in all_records()] == ["greetings@1.1"]
    assert fetched("greetings@1.1") == ["hello"]
    assert remove_dataset("greetings@1.1") == 1
    assert list(harbor_cache().iterdir()) == []
    with pytest.raises(UnknownDatasetError, match="was not fetched"):
        remove_dataset("greetings@1.1")


def test_a_name_can_be_loaded_from_within_a_running_loop(
    home: Path, registry: Registry, repository: Any
) -> None:
    registry.datasets["greetings", "1.0"] = [row(repository, "hello")]
    import asyncio

    async def inside() -> list[str]:
        return fetched("greetings@1.0")

    assert asyncio.run(inside()) == ["hello"]


def test_the_commands_pull_list_and_remove(
    home: Path, repository: Any, make_task: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"name": "greetings", "version": "1.0", "description": "", "tasks": [row(repository, "hello")]}]
    (tmp_path / "registry.json").write_text(json.dumps(rows))
    source = f"{tmp_path}/registry.json#greetings@1.0"

    def termrl(*words: str) -> str:
        assert main(["tasks", *words]) == 0
        return capsys.readouterr().out

    assert "1 entries" in termrl("pull", source)
    listed = json.loads(termrl("datasets", "--json"))
    assert [(each["dataset"], each["damaged"]) for each in listed["fetched"]] == [(source, [])]
    assert "whole" in termrl("datasets")
    stray = make_task(harbor_cache() / "abc123" / "stray")
    assert json.loads(termrl("datasets", "--json"))["others"] == [str(stray)]
    assert "removed" in termrl("datasets", "remove", source)
    assert json.loads(termrl("datasets", "--json"))["fetched"] == []
    assert (stray / "task.toml").is_file()
