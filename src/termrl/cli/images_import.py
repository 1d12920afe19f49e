"""`termrl images import`: a root file system under the name that a Dockerfile's FROM asks for."""

from termrl.cli.arguments import UsageError, parse


def help_text() -> str:
    return "\n".join(
        [
            "usage: termrl images import NAME PATH|docker:REF",
            "",
            "Imports a root file system for the local sandbox, so that `FROM NAME` is found: a directory, a",
            "tar file (as `docker export` or debootstrap make), or an image that the Docker engine has.",
            "Examples:",
            "  termrl images import ubuntu:24.04 docker:ubuntu:24.04",
            "  termrl images import debian:12 ./debian-rootfs.tar",
        ]
    )


def run(arguments: list[str]) -> int:
    given = parse(arguments, words=["NAME", "PATH"])
    if len(given.words) != 2:
        raise UsageError("`termrl images import` takes a NAME and a PATH (or docker:REF).")
    name, source = given.words
    print(f"importing {source} as {name}", flush=True)

    from termrl.sandbox.images import ImageStore
    from termrl.sandbox.layers import default_layers_dir, open_default_store

    record = ImageStore(default_layers_dir()).add(name, source, open_default_store())
    print(f"{record.reference}: {record.size / 1e6:.0f} MB, {record.key}")
    return 0
