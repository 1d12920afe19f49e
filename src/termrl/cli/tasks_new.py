"""`termrl tasks new`: writes a task of one's own to begin with."""

from pathlib import Path

from termrl.cli.arguments import UsageError, parse


def help_text() -> str:
    return "\n".join(
        [
            "usage: termrl tasks new NAME [output_path=.]",
            "",
            "Writes a small task that is whole: directory NAME, with instruction, Dockerfile, tests and a",
            "reference solution. It passes `termrl tasks check NAME` as it is; make it yours from there.",
        ]
    )


def run(arguments: list[str]) -> int:
    given = parse(arguments, words=["NAME"], options=["output_path"])
    if not given.words:
        raise UsageError("Say what the task is called: termrl tasks new NAME.")

    from termrl.tasks.scaffold import write_new_task

    path = write_new_task(given.words[0], Path(given.options.get("output_path", ".")).expanduser())
    print(f"wrote {path}: instruction.md, task.toml, environment/, tests/test.sh, solution/solve.sh")
    print(f"next: termrl tasks check {path}")
    return 0
