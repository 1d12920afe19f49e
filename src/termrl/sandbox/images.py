"""Root file systems by name, imported once: what a Dockerfile's FROM is looked up among.

An image is a directory in the layer cache, named by the hash of its content, and a small record by its name
that says which. `termrl/host` is always there: it is the host's own /usr. Nothing is ever put in another
image's place: a name that is not here is refused, with the two ways out.
"""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, unquote

from termrl.errors import UserError
from termrl.sandbox.errors import UnsupportedEnvironment
from termrl.sandbox.layers import LayerStore
from termrl.sandbox.recipe import HOST_IMAGE, SCRATCH, Image

_LAYER = "image-"
_IDS = 65_536
DOCKER = "docker:"


class ImageNotImported(UserError):
    """What was given to import is not a root file system."""


@dataclass(frozen=True)
class ImageRecord:
    reference: str
    key: str
    owner: int
    size: int
    imported: float
    source: str
    env: Mapping[str, str]
    workdir: str = "/"
    user: str = "root"

    @property
    def layer(self) -> str:
        return f"{_LAYER}{self.key}"


class ImageStore:
    def __init__(self, layers_dir: Path, base_images: Mapping[str, str] | None = None) -> None:
        """`base_images` says which image to use for a name: `{"ubuntu:24.04": "termrl/host"}`."""
        self._root = layers_dir
        self._records = layers_dir / "images"
        self._base_images = dict(base_images or {})

    def find(self, reference: str, where: str) -> Image:
        """The image of a reference, as it is or as `base_images` maps it; refused where there is none."""
        name = self._base_images.get(reference, self._base_images.get(canonical(reference), reference))
        if name in (HOST_IMAGE, f"{HOST_IMAGE}:latest"):
            return Image(HOST_IMAGE)
        if name == SCRATCH:
            return Image(SCRATCH, key=SCRATCH)
        record = self.record(name)
        if record is None:
            asked = name if name == reference else f"{reference} (mapped to {name})"
            raise UnsupportedEnvironment(
                f"{where}: there is no image {asked} here: import it (`termrl images import {name} "
                f"docker:{name}`, or a root file system instead of docker:...), map it "
                f"(base_images={reference}={HOST_IMAGE}), or use environment_type=docker."
            )
        return Image(reference, record.key, tuple(sorted(record.env.items())), record.workdir, record.user)

    def record(self, reference: str) -> ImageRecord | None:
        path = self._record_path(reference)
        try:
            record = ImageRecord(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return None
        return record if (self._root / record.layer).is_dir() else None

    def records(self) -> list[ImageRecord]:
        names = sorted(unquote(path.stem) for path in self._records.glob("*.json"))
        return [record for name in names if (record := self.record(name)) is not None]

    def add(self, reference: str, source: str, store: LayerStore) -> ImageRecord:
        """Import a directory, a tar file, or `docker:REF`, and give it a name."""
        if reference in (HOST_IMAGE, SCRATCH):
            raise ImageNotImported(f"{reference} is built in: give the image another name.")
        with tempfile.TemporaryDirectory(prefix="termrl-image-") as folder:
            settings: dict[str, Any] = {"env": {}, "workdir": "/", "user": "root"}
            if source.startswith(DOCKER):
                archive, settings = _export(source.removeprefix(DOCKER), Path(folder))
            else:
                archive = Path(source).expanduser()
            if not archive.exists():
                raise ImageNotImported(
                    f"There is no {archive}: give a directory or a tar file, or docker:REF."
                )
            with store.new_layer() as directory:
                root = directory / "root"
                root.mkdir()
                key, size = _unpack(archive, root, store.owner, settings)
                if not any((root / name).exists() for name in ("bin", "usr", "sbin", "etc")):
                    raise ImageNotImported(
                        f"{source} holds no root file system: there is no bin, sbin, usr or etc at its top."
                    )
                store.keep(directory, f"{_LAYER}{key}")
        record = ImageRecord(canonical(reference), key, store.owner, size, time.time(), source, **settings)
        self._records.mkdir(parents=True, exist_ok=True)
        path = self._record_path(reference)
        pending = path.with_suffix(f".{os.getpid()}.new")
        pending.write_text(json.dumps(asdict(record)))
        pending.replace(path)
        return record

    def remove(self, reference: str) -> None:
        """Forget the name; the files go too where no other name has them."""
        record = self.record(reference)
        self._record_path(reference).unlink(missing_ok=True)
        if record is not None and all(other.key != record.key for other in self.records()):
            from termrl.sandbox.layers import remove_tree

            remove_tree(self._root / record.layer)

    def _record_path(self, reference: str) -> Path:
        return self._records / f"{quote(canonical(reference), safe='')}.json"


def canonical(reference: str) -> str:
    """`ubuntu`, `docker.io/library/ubuntu` and `ubuntu:latest` are one name."""
    name = reference.removeprefix("docker.io/").removeprefix("library/")
    if "@" not in name and ":" not in name.rpartition("/")[2]:
        name += ":latest"
    return name


def _export(reference: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """The root file system and the settings of an image that the Docker engine has."""
    docker = shutil.which("docker")
    if docker is None:
        raise ImageNotImported(
            f"docker:{reference} can't be read: there is no docker command; install it, or give a tar file."
        )
    inspected = _docker([docker, "image", "inspect", reference], reference)
    described = json.loads(inspected)[0]["Config"] or {}
    container = _docker([docker, "create", reference, "true"], reference).decode().split()[-1]
    try:
        _docker([docker, "export", "-o", str(folder / "root.tar"), container], reference)
    finally:
        subprocess.run([docker, "rm", "-f", container], capture_output=True, check=False)
    env = dict(entry.split("=", 1) for entry in described.get("Env") or [])
    user = described.get("User") or "root"
    settings = {"env": env, "workdir": described.get("WorkingDir") or "/", "user": user}
    return folder / "root.tar", settings


def _docker(command: list[str], reference: str) -> bytes:
    ended = subprocess.run(command, capture_output=True, check=False)
    if ended.returncode != 0:
        complaint = ended.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise ImageNotImported(
            f"docker:{reference} can't be read ({complaint}): `docker pull {reference}` first, "
            "or give a tar file."
        )
    return ended.stdout


def _unpack(source: Path, root: Path, owner: int, settings: dict[str, Any]) -> tuple[str, int]:
    """Write the file system, each id counted from `owner` on; the hash of all of it, and its size."""
    digest = hashlib.sha256(json.dumps([owner, settings], sort_keys=True).encode())
    size = 0
    # Directories last and deepest first: one that its owner may not write to must be filled by then.
    finish: list[tuple[Path, tarfile.TarInfo]] = []
    with _archive(source) as archive:
        for member in archive:
            member.name = os.path.normpath(member.name).lstrip("/")
            if member.name in (".", "") or member.name.startswith("..") or member.isdev():
                continue
            path = root / member.name
            if not _stays(path, root):
                continue
            content = archive.extractfile(member) if member.isreg() else None
            size += member.size
            _digest_member(digest, member)
            _write_member(archive, member, path, root, content, digest)
            if member.isdir():
                finish.append((path, member))
            else:
                _finish(path, member, owner)
    for path, member in sorted(finish, key=lambda each: str(each[0]), reverse=True):
        _finish(path, member, owner)
    if os.geteuid() == 0:
        os.chown(root, owner, owner)
    return digest.hexdigest()[:24], size


@contextlib.contextmanager
def _archive(source: Path) -> Iterator[tarfile.TarFile]:
    if source.is_file():
        try:
            with tarfile.open(source) as archive:
                yield archive
        except tarfile.TarError as error:
            raise ImageNotImported(f"{source} is not a tar file: {error}.") from error
        return
    with tempfile.TemporaryFile() as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
            archive.add(source, arcname=".")
        packed.seek(0)
        with tarfile.open(fileobj=packed) as archive:
            yield archive


def _digest_member(digest: "hashlib._Hash", member: tarfile.TarInfo) -> None:
    described = (member.name, member.type, member.mode, member.uid, member.gid, member.linkname, member.size)
    digest.update(repr(described).encode())


def _write_member(
    archive: tarfile.TarFile,
    member: tarfile.TarInfo,
    path: Path,
    root: Path,
    content: IO[bytes] | None,
    digest: "hashlib._Hash",
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or (path.exists() and not (path.is_dir() and member.isdir())):
        path.unlink()
    if member.isdir():
        path.mkdir(exist_ok=True)
    elif member.issym():
        path.symlink_to(member.linkname)
    elif member.islnk():
        linked = root / os.path.normpath(member.linkname).lstrip("/")
        if _stays(linked, root):
            os.link(linked, path, follow_symlinks=False)
    elif member.isfifo():
        os.mkfifo(path)
    elif content is not None:
        with path.open("xb") as file:
            while chunk := content.read(1 << 20):
                digest.update(chunk)
                file.write(chunk)


def _finish(path: Path, member: tarfile.TarInfo, owner: int) -> None:
    if member.islnk() or not os.path.lexists(path):
        return
    if os.geteuid() == 0:
        os.chown(path, owner + member.uid % _IDS, owner + member.gid % _IDS, follow_symlinks=False)
    if not member.issym():
        os.chmod(path, member.mode & 0o7777)
        os.utime(path, (member.mtime, member.mtime))


def _stays(path: Path, root: Path) -> bool:
    """Whether the way to `path` leads through no link out of `root`."""
    parent = path.parent
    return parent == root or parent.resolve().is_relative_to(root.resolve())
