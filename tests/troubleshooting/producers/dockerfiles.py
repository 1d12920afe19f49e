"""Messages of docs/troubleshooting.md: Dockerfiles and images in the local sandbox."""

from producers import Place, Producer, says
from termrl.sandbox.dockerfile import parse
from termrl.sandbox.images import ImageStore
from termrl.sandbox.reading import read_dockerfile


def dockerfile(place: Place, *lines: str) -> None:
    text = "\n".join(("FROM termrl/host", *lines, ""))
    read_dockerfile(place.file("Dockerfile", text), ImageStore(place.path).find)


DOCKERFILES = {
    "…: FROM … is not FROM IMAGE [AS NAME].": "FROM a b",
    "…: the local sandbox does not have … (it has …): …": "ENTRYPOINT x",
    "…: the local sandbox does not have … --…: …": "COPY --parents a /a",
    "…: the local sandbox does not read ${…}: …": "WORKDIR ${A%b}",
    "…: … has no value: …": "WORKDIR ${A:?say where}",
    "…, line …: the heredoc … is not closed.": "RUN <<END\ntrue",
    "…: … has several sources, so its target … must end with a '/'.": "COPY Dockerfile Dockerfile /a",
    "…: … … leads out of …: copy it in there first.": "COPY ../a /a",
    "…: … … comes from elsewhere and may change unseen: …": "ADD http://a/b /a",
    "…: there is no image … here: import it …": "FROM ubuntu:1",
    "…: ENV needs a name and a value: write ENV NAME=value.": "ENV",
    "…: ENV … has no value: write ENV …=value.": "ENV A",
    "…: RUN says nothing to run.": "RUN",
    "…: WORKDIR names no directory.": "WORKDIR",
    "…: USER names no user.": "USER",
    '…: SHELL is written as a list: SHELL ["/bin/bash", "-c"].': "SHELL bash",
    "…: … needs a source and a target.": "COPY a",
    "…: … … names nothing in …: add it or drop the line.": "COPY a /a",
    "…: --chmod=… is not an octal mode: …": "COPY --chmod=rwx Dockerfile /a",
    "…: … is not a variable: write $NAME or ${NAME}.": "WORKDIR ${",
}


def _in_a_dockerfile(line: str) -> Producer:
    return lambda place: dockerfile(place, line)


for message, line in DOCKERFILES.items():
    says(message)(_in_a_dockerfile(line))


@says("…: escape=… is neither \\ nor `.")
def _(place: Place) -> None:
    list(parse("# escape=x\nFROM a\n"))


@says("… is built in: give the image another name.")
def _(place: Place) -> list[str]:
    place.monkeypatch.setenv("XDG_CACHE_HOME", str(place.path / "cache"))
    return ["images", "import", "termrl/host", "."]


@says("… is not a tar file: …")
def _(place: Place) -> list[str]:
    place.monkeypatch.setenv("XDG_CACHE_HOME", str(place.path / "cache"))
    return ["images", "import", "mine", str(place.file("root.tar", "no"))]


@says("… does not begin with FROM: …")
def _(place: Place) -> None:
    read_dockerfile(place.file("Dockerfile", "RUN true\n"), ImageStore(place.path).find)


@says("… can't be read: …")
def _(place: Place) -> None:
    read_dockerfile(place.path, ImageStore(place.path).find)


def importing(place: Place, source: str) -> list[str]:
    place.monkeypatch.setenv("XDG_CACHE_HOME", str(place.path / "cache"))
    return ["images", "import", "mine", source]


@says("docker:… can't be read: there is no docker command; install it, or give a tar file.")
def _(place: Place) -> list[str]:
    place.monkeypatch.setattr("termrl.sandbox.images.shutil.which", lambda name: None)
    return importing(place, "docker:mine")


@says("docker:… can't be read (…): `docker pull …` first, or give a tar file.")
def _(place: Place) -> list[str]:
    place.command("docker", "echo 'Error: No such image: mine' >&2; exit 1")
    return importing(place, "docker:mine")


@says("There is no …: give a directory or a tar file, or docker:REF.")
def _(place: Place) -> list[str]:
    return importing(place, "nowhere.tar")


@says("… holds no root file system: …")
def _(place: Place) -> list[str]:
    place.file("root/readme")
    return importing(place, "root")


@says("There is no image …: `termrl images list` shows what there is.")
def _(place: Place) -> list[str]:
    importing(place, "nothing")
    return ["images", "remove", "nothing"]
