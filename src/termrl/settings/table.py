"""docs/settings.md, made from the settings themselves by `make docs`."""

from termrl.config import ALIASES, EvalConfig
from termrl.settings import SHIPPED, all_settings

INTRODUCTION = """\
# Settings

`termrl train` takes each of these as `key=value`, `--key value` or `--key=value`. `config=FILE` reads them
from a TOML file first (a name with a dot is a key of a table: `[warmup]`, `enabled = true`); what is typed
overrides the file. Files that ship are named without a path: {shipped}.
The settings a run was made with are stored in it: `termrl train run_name=NAME` goes on with them.
"""


def settings_page() -> str:
    shipped = ", ".join(f"`config={file.stem}`" for file in sorted(SHIPPED.glob("*.toml")))
    rows = [
        f"| `{setting.name}` | {setting.expected} | `{setting.shown_default}` | {setting.doc} |"
        for setting in all_settings().values()
    ]
    training = all_settings()
    evaluation = [
        f"| `{setting.name}` | {setting.expected} | `{setting.shown_default}` | {setting.doc} |"
        for setting in all_settings(EvalConfig).values()
        if training.get(setting.name) != setting
    ]
    aliases = [f"| `{alias}` | `{name}` |" for alias, name in ALIASES.items()]
    return "\n".join(
        [
            INTRODUCTION.format(shipped=shipped),
            "| setting | type | default | what it is |",
            "|---|---|---|---|",
            *rows,
            "",
            "## Evaluation",
            "",
            "`termrl eval` takes the settings above that concern model, agent, sandbox and run,",
            "and these, of which some have another default than in training.",
            "",
            "| setting | type | default | what it is |",
            "|---|---|---|---|",
            *evaluation,
            "",
            "## Other names",
            "",
            "Names that other trainers use are accepted too.",
            "",
            "| name | stands for |",
            "|---|---|",
            *aliases,
            "",
        ]
    )


if __name__ == "__main__":
    print(settings_page(), end="")
