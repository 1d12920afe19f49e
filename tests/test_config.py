"""Settings: what can be typed, what is refused, and that nothing is lost on the way to JSON and back."""

import json
from pathlib import Path

import chz
import pytest
from hypothesis import given
from hypothesis import strategies as st

from termrl.config import ALIASES, ContradictionError, EvalConfig, TrainConfig, WarmupConfig
from termrl.errors import UserError
from termrl.settings import (
    SHIPPED,
    BadValueError,
    SettingsFileError,
    UnknownSettingError,
    all_settings,
    from_dict,
    resolve,
    to_dict,
)
from termrl.settings.values import parse_value, show_value


@pytest.mark.parametrize(
    "arguments",
    [
        ["learning_rate=3e-4", "group_size=4"],
        ["--learning_rate", "3e-4", "--group_size", "4"],
        ["--learning_rate=3e-4", "--group-size=4"],
    ],
)
def test_three_ways_to_write_a_setting_mean_the_same(arguments: list[str]) -> None:
    assert resolve(arguments) == TrainConfig(learning_rate=3e-4, group_size=4)


def test_an_alias_sets_the_setting_it_stands_for() -> None:
    config = resolve(["groups_per_batch=3", "num_batches=5", "sandbox_concurrency=2", "tasks_dir=x"])
    assert (config.batch_size, config.max_steps, config.n_parallel_envs, config.dataset) == (3, 5, 2, "x")


def test_every_alias_stands_for_a_setting_that_exists_and_hides_none() -> None:
    settings = {*all_settings(TrainConfig), *all_settings(EvalConfig)}
    assert set(ALIASES.values()) <= settings
    assert not set(ALIASES) & settings


def test_an_alias_and_its_setting_with_two_values_are_refused() -> None:
    with pytest.raises(BadValueError, match=r"batch_size=3 and groups_per_batch=4 are two names"):
        resolve(["batch_size=3", "groups_per_batch=4"])


def test_a_bare_flag_is_true_whatever_follows() -> None:
    assert resolve(["--shuffle_rewards"]).shuffle_rewards
    assert resolve(["--shuffle_rewards", "seed=3"]) == TrainConfig(shuffle_rewards=True, seed=3)
    assert resolve(["--shuffle_rewards", "--seed", "3"]) == TrainConfig(shuffle_rewards=True, seed=3)


def test_warm_up_is_off_unless_asked_for() -> None:
    assert not resolve([]).warmup.enabled
    assert not TrainConfig().warmup.enabled
    assert resolve(["warmup=true"]).warmup == WarmupConfig(enabled=True)


def test_a_nested_setting_is_written_with_a_dot() -> None:
    assert resolve(["warmup.families=copy-file,sort-lines"]).warmup.families == ("copy-file", "sort-lines")
    assert resolve(['warmup.families=["copy-file"]']).warmup.families == ("copy-file",)
    assert resolve(["warmup.families=none"]).warmup.families is None


def test_the_home_directory_is_expanded() -> None:
    assert resolve(["run_root=~/runs"]).run_root == str(Path.home() / "runs")


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("group_sise=3", "There is no setting 'group_sise': did you mean group_size?"),
        ("epochs=3", "There is no setting 'epochs': did you mean warmup.epochs?"),
        ("warm_up.enabled=true", "did you mean warmup.enabled"),
        ("xyzzy=3", "`--help` lists them all"),
        ("quickstart", "'quickstart' is not a setting: settings are written key=value"),
    ],
)
def test_an_unknown_key_is_refused_with_what_may_have_been_meant(argument: str, sentence: str) -> None:
    with pytest.raises(UnknownSettingError) as refusal:
        resolve([argument])
    assert sentence in str(refusal.value)
    assert refusal.value.exit_code == 2


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("group_size=many", "group_size is 'many', which is not a whole number."),
        ("group_size=2.5", "group_size is '2.5', which is not a whole number."),
        ("groups_per_batch=many", "groups_per_batch is 'many', which is not a whole number."),
        ("learning_rate=nan", "learning_rate is 'nan', which is not a number."),
        ("shuffle_rewards=perhaps", "shuffle_rewards is 'perhaps', which is not true or false."),
        ("loss_fn=mse", "loss_fn is 'mse', which is not importance_sampling or ppo."),
        ("context_limit=big", "context_limit is 'big', which is not a whole number or none."),
        ("seed=none", "seed is 'none', which is not a whole number."),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_key_value_and_type(argument: str, sentence: str) -> None:
    with pytest.raises(BadValueError) as refusal:
        resolve([argument])
    assert str(refusal.value) == sentence
    assert refusal.value.exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["group_size=1"], ["group_size"]),
        (["num_substeps=65"], ["num_substeps"]),
        (["max_tokens=512", "context_limit=512"], ["max_tokens", "context_limit"]),
        (
            ["enable_summarize=false", "proactive_summarization_threshold=100"],
            ["proactive_summarization_threshold", "enable_summarize"],
        ),
        (["eval_every=2", "eval_dataset=none"], ["eval_every", "eval_dataset"]),
        (["base_url=localhost:8000"], ["base_url"]),
        (["run_name=a/b"], ["run_name", "run_root"]),
        (["run_name=.."], ["run_name"]),
        (["temperature=0"], ["temperature"]),
        (["learning_rate=-1"], ["learning_rate"]),
        (["n_parallel_envs=0"], ["n_parallel_envs"]),
        (["warmup.epochs=0"], ["warmup.epochs"]),
    ],
)
def test_settings_that_contradict_each_other_are_refused_by_name(
    arguments: list[str], names: list[str]
) -> None:
    with pytest.raises(ContradictionError) as refusal:
        resolve(arguments)
    assert all(name in str(refusal.value) for name in names)
    assert refusal.value.exit_code == 2


def test_the_command_line_overrides_the_settings_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("seed = 7\ngroups_per_batch = 2\n[warmup]\nenabled = true\nfamilies = ['a']\n")
    config = resolve([f"config={file}", "batch_size=5", "warmup.epochs=3"])
    assert config == TrainConfig(
        seed=7, batch_size=5, warmup=WarmupConfig(enabled=True, families=("a",), epochs=3)
    )


@pytest.mark.parametrize(
    ("text", "error", "sentence"),
    [
        ("seed = ", SettingsFileError, "is not TOML"),
        ("sead = 1", UnknownSettingError, "mine.toml: did you mean seed"),
        ("seed = 'one'", BadValueError, "mine.toml, which is not a whole number"),
        ("seed = true", BadValueError, "which is not a whole number"),
        ("run_name = 3", BadValueError, "which is not a text or none"),
        ("warmup = 3", BadValueError, "which is not true or false"),
        ("seed = [1]", BadValueError, "which is not a whole number"),
    ],
)
def test_a_bad_settings_file_is_refused_by_file_and_key(
    tmp_path: Path, text: str, error: type[UserError], sentence: str
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(error) as refusal:
        resolve([f"config={file}"])
    assert sentence in str(refusal.value)


def test_a_settings_file_that_is_not_there_is_refused_with_those_that_ship() -> None:
    with pytest.raises(SettingsFileError, match=r"'nowhere.toml' could not be read .* quickstart"):
        resolve(["config=nowhere.toml"])


@pytest.mark.parametrize("name", sorted(file.stem for file in SHIPPED.glob("*.toml")))
def test_every_settings_file_that_ships_can_be_used(name: str) -> None:
    resolve([f"config={name}"])


def test_the_quick_start_asks_for_its_warm_up() -> None:
    assert resolve(["config=quickstart"]).warmup.enabled


def test_every_setting_says_what_it_is_in_one_line() -> None:
    for setting in all_settings().values():
        assert setting.doc, setting.name
        assert "\n" not in setting.doc
        assert len(setting.doc) < 110, setting.name
        assert setting.expected


def test_every_default_can_be_typed_as_it_is_shown() -> None:
    for setting in all_settings().values():
        assert parse_value(setting.type, setting.shown_default) == setting.default, setting.name


def test_settings_survive_json() -> None:
    config = resolve(["config=quickstart", "warmup.families=a,b", "max_minutes=2.5"])
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


@given(
    seed=st.integers(0, 2**40),
    rate=st.floats(1e-9, 1.0),
    name=st.none()
    | st.from_regex(r"[a-z][a-z0-9-]{0,20}", fullmatch=True).filter(lambda s: s not in ("none", "null")),
    families=st.none() | st.lists(st.from_regex(r"[a-z-]+", fullmatch=True), min_size=1).map(tuple),
    shuffle=st.booleans(),
)
def test_what_is_shown_can_be_typed_again(
    seed: int, rate: float, name: str | None, families: tuple[str, ...] | None, shuffle: bool
) -> None:
    if families in (("none",), ("null",)):
        return
    config = TrainConfig(
        seed=seed,
        learning_rate=rate,
        run_name=name,
        shuffle_rewards=shuffle,
        warmup=WarmupConfig(families=families),
    )
    typed = [
        f"{key}={show_value(chz.asdict(config)[key])}"
        for key in ("seed", "learning_rate", "run_name", "shuffle_rewards")
    ]
    assert resolve([*typed, f"warmup.families={show_value(families)}"]) == config


def test_the_table_of_settings_in_the_docs_is_up_to_date() -> None:
    from termrl.settings.table import settings_page

    page = Path(__file__).parents[1] / "docs" / "settings.md"
    assert page.read_text() == settings_page(), "run `make docs`"
