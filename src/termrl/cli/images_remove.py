"""`termrl images remove`: forgets an imported root file system."""

from termrl.cli.arguments import UsageError, parse


def help_text() -> str:
    return "\n".join(
        ["usage: termrl images remove NAME", "", "Removes what `termrl images import NAME` imported."]
    )


def run(arguments: list[str]) -> int:
    given = parse(arguments, words=["NAME"])
    if not given.words:
        raise UsageError("`termrl images remove` takes the NAME of an image.")

    from termrl.sandbox.images import ImageStore
    from termrl.sandbox.layers import default_layers_dir

    images = ImageStore(default_layers_dir())
    if images.record(given.words[0]) is None:
        raise UsageError(f"There is no image {given.words[0]}: `termrl images list` shows what there is.")
    images.remove(given.words[0])
    print(f"removed {given.words[0]}")
    return 0
