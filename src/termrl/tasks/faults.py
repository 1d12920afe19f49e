"""What goes wrong while a dataset is looked up and fetched, as the sentence for whoever asked for it.

Harbor's clients raise what their libraries raise; which of them a missing network hides behind is known
here and nowhere else.
"""

import subprocess
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

import httpx

from termrl.tasks.errors import (
    FetchError,
    OutwardLinkError,
    RegistryUnreachableError,
    TaskError,
    UnknownDatasetError,
    UnknownRevisionError,
)

_NO_REVISION = ("not our ref", "couldn't find remote ref", "reference is not a tree", "unadvertised object")
_NO_REPOSITORY = ("does not exist", "not found", "does not appear to be a git repository")
_NO_CONNECTION = (
    "could not resolve host",
    "unable to access",
    "could not read from remote",
    "failed to connect",
)


@contextmanager
def explained(dataset: str, source: str) -> Iterator[None]:
    """Turns what a fetch raises into a `TaskError` about `dataset`, which comes from `source`."""
    try:
        yield
    except TaskError:
        raise
    except subprocess.CalledProcessError as error:
        raise _of_git(error, dataset, source) from error
    except urllib.error.HTTPError as error:
        raise FetchError(f"{source} answered {error.code} {error.reason}: check the address.") from error
    except (Exception, ExceptionGroup) as error:
        raise _of_anything(error, dataset, source) from error


def unknown_name(name: str, source: str, known: list[str]) -> UnknownDatasetError:
    """A name that a registry does not have, with the nearest that it has."""
    close = get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f" (did you mean {close[0]}?)" if close else ""
    rest = f", which has {_some(known)}" if known else ""
    return UnknownDatasetError(f"There is no dataset {name}{hint} in {source}{rest}.")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more


def _of_git(error: subprocess.CalledProcessError, dataset: str, source: str) -> TaskError:
    output = error.stderr or b""
    text = output.decode(errors="replace") if isinstance(output, bytes) else str(output)
    lower, last = text.lower(), _last_line(text)
    if any(sign in lower for sign in _NO_REVISION):
        return UnknownRevisionError(
            f"{source} has no such commit as {dataset} asks for: check it, all 40 digits of it ({last})."
        )
    # Both git's complaints come together when a host is unknown, so the connection is asked about first.
    if "could not resolve host" in lower or "failed to connect" in lower:
        return _unreachable(dataset, source, last)
    if any(sign in lower for sign in _NO_REPOSITORY):
        return FetchError(f"There is no git repository at {source}: {last}.")
    if any(sign in lower for sign in _NO_CONNECTION):
        return _unreachable(dataset, source, last)
    return FetchError(f"git could not fetch {dataset} from {source}: {last}.")


def _of_anything(error: BaseException, dataset: str, source: str) -> TaskError:
    text = " ".join(str(error).split()).rstrip(".")
    if "Git task" in text:
        return OutwardLinkError(
            f"{dataset} has a task with a link that cannot be followed within it: {text}."
        )
    if isinstance(error, FileNotFoundError):
        return _of_missing_file(error, dataset, source)
    for link in _chain(error):
        if isinstance(link, subprocess.CalledProcessError):
            return _of_git(link, dataset, source)
        if isinstance(link, httpx.TransportError | urllib.error.URLError | ConnectionError | TimeoutError):
            return _unreachable(dataset, source, str(getattr(link, "reason", link)) or type(link).__name__)
        if isinstance(link, OSError):
            return FetchError(f"{dataset} could not be fetched: {link.strerror or link}.")
    if "Could not resolve ref" in text:
        return UnknownRevisionError(
            f"{source} has no branch or tag as {dataset} asks for; a commit takes all of its 40 digits."
        )
    if "not found" in text.lower():
        return UnknownDatasetError(f"There is no dataset {dataset} in {source}.")
    return FetchError(f"{dataset} could not be fetched from {source}: {text}.")


def _of_missing_file(error: FileNotFoundError, dataset: str, source: str) -> TaskError:
    missing = str(error.filename or "")
    if missing == "git":
        return FetchError(f"{dataset} comes from a git repository, and there is no git: install it.")
    if Path(missing) == Path(source).expanduser():
        return UnknownDatasetError(f"There is no {source}: check the path.")
    what = Path(missing).name if missing else str(error)
    return FetchError(f"{dataset} names a task that is not where it should be in {source}: {what}.")


def _unreachable(dataset: str, source: str, why: str) -> RegistryUnreachableError:
    reason = " ".join(why.split()).rstrip(".")
    return RegistryUnreachableError(
        f"{dataset} is not on this machine yet and {source} cannot be reached: {reason}; "
        "connect to the network for its first use, after that it works without."
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        link = waiting.pop(0)
        if id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        if isinstance(link, BaseExceptionGroup):
            waiting.extend(link.exceptions)
        waiting.extend(each for each in (link.__cause__, link.__context__) if each is not None)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[-1] if lines else "it said nothing").removeprefix("fatal: ").rstrip(".")
