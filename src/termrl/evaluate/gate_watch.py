"""What an oracle leaves behind in its sandbox: processes that run on, and system files it changed.

Looked at between the agent and the tests, from within, with nothing but bash and find. For the lone oracle,
what runs on is ended as well.
"""

from dataclasses import dataclass, field

from harbor.environments.base import BaseEnvironment
from harbor.trial.hooks import TrialEvent, TrialHookEvent
from harbor.trial.trial import Trial

_MARK = "/var/tmp/.before-the-agent"
_LONGEST = 100
_SECONDS = 60

# The listing forks nothing, so that it does not list itself.
_PROCESSES = r"""
for directory in /proc/[0-9]*; do
  pid=${directory#/proc/}
  [[ $pid == $$ || $pid == $PPID || $pid == 1 ]] && continue
  words=()
  { mapfile -d '' words <"$directory/cmdline"; } 2>/dev/null
  [[ ${#words[@]} -gt 0 ]] && printf '%s %s\n' "$pid" "${words[*]:0:6}"
done
true
"""

_MARKING = f"mkdir -p /var/tmp && touch {_MARK} && sleep 0.02"

# A directory that can't be written to can't have changed, and may be big.
_CHANGES = rf"""
for directory in /etc /usr /bin /sbin /lib /lib64 /root; do
  [[ -d $directory && ! -L $directory && -w $directory ]] &&
    find "$directory" -xdev \( -type f -o -type l \) -newercm {_MARK} -print
done 2>/dev/null | head -n {_LONGEST}
rm -f {_MARK}
"""


@dataclass(slots=True)
class Leavings:
    """Filled in while the trial runs."""

    processes: list[str] = field(default_factory=list)
    system_files: list[str] = field(default_factory=list)


def watch(trial: Trial, *, end_processes: bool) -> Leavings:
    """Look at what the agent of `trial` leaves. Call it before whatever else prepares the verification."""
    leavings = Leavings()
    before: set[str] = set()

    async def mark(event: TrialHookEvent) -> None:
        environment = trial.agent_environment
        before.update(await _processes(environment))
        await _run(environment, _MARKING)

    async def look(event: TrialHookEvent) -> None:
        environment = trial.agent_environment
        left = {pid: words for pid, words in (await _processes(environment)).items() if pid not in before}
        leavings.processes = sorted({*leavings.processes, *left.values()})
        changed = (await _run(environment, _CHANGES)).splitlines()
        leavings.system_files = sorted({*leavings.system_files, *changed})
        if end_processes and left:
            await _run(environment, f"kill -9 {' '.join(left)} 2>/dev/null; sleep 0.2")

    trial.add_hook(TrialEvent.AGENT_START, mark)
    trial.add_hook(TrialEvent.VERIFICATION_START, look)
    return leavings


async def _processes(environment: BaseEnvironment) -> dict[str, str]:
    lines = (await _run(environment, _PROCESSES)).splitlines()
    return dict(line.split(" ", 1) for line in lines if " " in line)


async def _run(environment: BaseEnvironment, command: str) -> str:
    result = await environment.exec(command, user="root", timeout_sec=_SECONDS)
    return result.stdout or ""
