"""Writes a small root file system out of this host's own programs, for the images of tests and benches.

`python scripts/small_root.py DIRECTORY [PROGRAM ...]`: bash, coreutils and what a task's tests usually call,
each with the libraries it loads. Nothing is downloaded, and it takes a second.
"""

import shutil
import subprocess
import sys
from pathlib import Path

PROGRAMS = (
    *(
        "bash",
        "sh",
        "ls",
        "cat",
        "cp",
        "mv",
        "rm",
        "rmdir",
        "mkdir",
        "mkfifo",
        "ln",
        "chmod",
        "chown",
        "touch",
    ),
    *(
        "echo",
        "true",
        "false",
        "sleep",
        "pwd",
        "id",
        "whoami",
        "env",
        "head",
        "tail",
        "wc",
        "cut",
        "tr",
        "sort",
    ),
    *(
        "nohup",
        "seq",
        "setsid",
        "date",
        "stat",
        "test",
        "dd",
        "base64",
        "sha256sum",
        "tar",
        "gzip",
        "grep",
        "sed",
        "find",
        "xargs",
    ),
    *(
        "ps",
        "kill",
        "getent",
        "su",
        "hostname",
        "df",
        "du",
        "readlink",
        "basename",
        "dirname",
        "tee",
        "uname",
        "timeout",
    ),
)
FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000:user:/home/user:/bin/bash\n",
    "etc/group": "root:x:0:\nuser:x:1000:\n",
    "etc/hosts": "127.0.0.1 localhost\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "etc/os-release": "ID=termrl-small\n",
}
DIRECTORIES = (
    "app",
    "proc",
    "sys",
    "dev",
    "run",
    "root",
    "home/user",
    "var/tmp",
    "usr/bin",
    "usr/lib",
    "etc",
)


def main() -> None:
    target, *more = sys.argv[1:]
    write_small_root(Path(target), (*PROGRAMS, *more))


def write_small_root(root: Path, programs: tuple[str, ...] = PROGRAMS) -> None:
    for name in DIRECTORIES:
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("tmp", "var/tmp"):
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name).chmod(0o1777)
    for name in ("bin", "sbin", "lib", "lib64"):
        if not (root / name).exists():
            (root / name).symlink_to("usr/bin" if name in ("bin", "sbin") else "usr/lib")
    for name, text in FILES.items():
        (root / name).write_text(text)
    for program in programs:
        found = shutil.which(program)
        if found is None:
            raise SystemExit(f"small_root: this host has no {program}")
        _copy(Path(found), root / "usr/bin" / program)
        for library in _libraries(found):
            _copy(library, root / "usr/lib" / library.name)
    for tree in ("locale/C.utf8", "terminfo"):
        if Path("/usr/lib", tree).is_dir():
            shutil.copytree(Path("/usr/lib", tree), root / "usr/lib" / tree, dirs_exist_ok=True)
    for library in Path("/lib").glob("*-linux-gnu/libnss_files.so*"):
        _copy(library, root / "usr/lib" / library.name)


def _copy(source: Path, target: Path) -> None:
    if not target.exists():
        shutil.copy(source.resolve(), target)


def _libraries(program: str) -> list[Path]:
    listing = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    words = [word for line in listing.splitlines() for word in line.split() if word.startswith("/")]
    return [Path(word) for word in words]


if __name__ == "__main__":
    main()
