"""Which files of a build context a .dockerignore leaves out: in order, `!` takes back, `**` is any depth."""

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Ignored:
    rules: tuple[tuple[re.Pattern[str], bool], ...] = ()

    def __contains__(self, name: str) -> bool:
        """Whether the file `name`, relative to the context, is left out: itself or a directory it is in."""
        ignored = False
        parts = name.split("/")
        names = ["/".join(parts[: length + 1]) for length in range(len(parts))]
        for pattern, ignores in self.rules:
            if any(pattern.fullmatch(each) for each in names):
                ignored = ignores
        return ignored


def read_dockerignore(context: Path) -> Ignored:
    path = context / ".dockerignore"
    if not path.is_file():
        return Ignored()
    rules = []
    for raw in path.read_text().splitlines():
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        ignores = not line.startswith("!")
        pattern = line.removeprefix("!").strip().strip("/")
        pattern = re.sub(r"(^|/)(\./)+", r"\1", pattern)
        if pattern:
            rules.append((re.compile(_expression(pattern)), ignores))
    return Ignored(tuple(rules))


def _expression(pattern: str) -> str:
    result, place = "", 0
    while place < len(pattern):
        if pattern.startswith("**/", place):
            result += "(?:.*/)?"
            place += 3
        elif pattern.startswith("**", place):
            result += ".*"
            place += 2
        elif pattern[place] == "*":
            result += "[^/]*"
            place += 1
        elif pattern[place] == "?":
            result += "[^/]"
            place += 1
        elif pattern[place] == "[" and "]" in pattern[place + 2 :]:
            end = pattern.index("]", place + 2)
            result += f"[{pattern[place + 1 : end].replace('!', '^', 1)}]"
            place = end + 1
        elif pattern[place] == "\\" and place + 1 < len(pattern):
            result += re.escape(pattern[place + 1])
            place += 2
        else:
            result += re.escape(pattern[place])
            place += 1
    return result
