"""Terminus-2's tmux session with one trip into the sandbox a turn, showing the model the same screens.

Stock asks four times a turn (is the session alive, type, whole scrollback, visible screen) and four times at
the start; here a turn's keystrokes, their waits and the look at the terminal are one script. With
`early_return` a wait ends when its command is done (`stillness`); without, it is as long as stock's. The one
addition is that the first look waits, for at most a second, until the shell has drawn its prompt, so that
the first prompt does not depend on how fast the machine was.
"""

import shlex
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harbor.environments.base import ExecResult

from termrl.agents.stillness import FUNCTIONS, NOT_WORTH_IT, may_return_early
from termrl.agents.stock import Command, TmuxSession
from termrl.sandbox.local import LocalEnvironment

_NO_TMUX = 127
_NOT_SENT = 75
_HISTORY_LIMIT = 10_000_000
_FIRST_LOOK_MS = 1000
_LONGEST_TRIP_SECONDS = 30.0
"""Waits that add up to more are made in several trips: services end a command that takes too long."""


@dataclass(frozen=True, slots=True)
class _Look:
    scrollback: str
    screen: str
    alive: bool


class KeysNotSent(RuntimeError):
    """tmux did not take the keystrokes: the session is gone, or they are too long for one command."""


class LeanTmuxSession(TmuxSession):
    def __init__(self, *args: Any, early_return: bool = False, logged: bool = True, **kwargs: Any) -> None:
        """`logged` has everything that the terminal shows written to `logging_path`, as stock does."""
        super().__init__(*args, **kwargs)
        self._early_return = early_return
        self._logged = logged
        self._border = uuid.uuid4().hex
        self._look: _Look | None = None
        self._alive: bool | None = None
        self._pane = ""

    async def start(self) -> None:
        begin, _, log = self._tmux_start_session.partition(" \\; ")
        say_pane = f"display-message -p -t {self._session_name} '{_PANE_FORMAT}'"
        limit = f"set-option -g history-limit {_HISTORY_LIMIT}"
        start = " \\; ".join([begin, *([log] if self._logged else []), limit, say_pane])
        script = (
            f"command -v tmux >/dev/null 2>&1 || exit {_NO_TMUX}\n"
            f"pane=$({start}) || exit 1; set -- $pane; shell_pid=$1 tmux_pid=$2 pane_tty=$3\n{FUNCTIONS}\n"
            f'until_done {_FIRST_LOOK_MS} ""\n{self._look_command}'
        )
        result = await self._exec(script)
        if result.return_code == _NO_TMUX:
            await super().start()
        elif result.return_code != 0:
            raise RuntimeError(f"Failed to start tmux session. Error: {result.stderr}")
        else:
            self._take_look(result.stdout or "", alive=True)

    async def play(self, commands: Sequence[Command]) -> None:
        """Types the commands one after the other, each with its wait; then looks. One trip as a rule."""
        trip: list[Command] = []
        for command in commands:
            if self._key_requires_paste(command.keystrokes):
                await self._go(trip)
                trip = []
                await super().send_keys(command.keystrokes, min_timeout_sec=command.duration_sec)
                continue
            if trip and sum(each.duration_sec for each in (*trip, command)) > _LONGEST_TRIP_SECONDS:
                await self._go(trip)
                trip = []
            trip.append(command)
        await self._go(trip, look=True)

    async def _go(self, commands: Sequence[Command], *, look: bool = False) -> None:
        if not commands and not look:
            return
        self._look = self._alive = None
        waits = any(each.duration_sec > 0 for each in commands)
        lines = [FUNCTIONS, self._pane] if waits else []
        for command in commands:
            lines += self._type_and_wait(command)
        lines.append(self._look_command if look else "true")
        result = await self._exec("\n".join(lines))
        if result.return_code == _NOT_SENT:
            raise KeysNotSent(f"{self.environment.session_id}: tmux took no keys: {result.stderr}")
        if look:
            self._take_look(result.stdout or "", alive=result.return_code == 0)

    def _type_and_wait(self, command: Command) -> list[str]:
        send = f"{self._send_keys_command([command.keystrokes])} || exit {_NOT_SENT}"
        duration = max(command.duration_sec, 0.0)
        if duration == 0:
            return [send]
        early = self._early_return and self._pane and duration > NOT_WORTH_IT
        if not early or not may_return_early(command.keystrokes):
            return [send, f"nap {duration:.3f}"]
        return ['before=; ran before || before=""', send, f'until_done {duration * 1000:.0f} "$before"']

    async def send_keys(self, *args: Any, **kwargs: Any) -> None:
        self._look = self._alive = None
        await super().send_keys(*args, **kwargs)

    async def get_incremental_output(self) -> str:
        if self._look is None:
            result = await self._exec(self._look_command)
            self._take_look(result.stdout or "", alive=result.return_code == 0)
        try:
            return str(await super().get_incremental_output())
        finally:
            self._look = None

    async def capture_pane(self, capture_entire: bool = False) -> str:
        if self._look is None:
            return str(await super().capture_pane(capture_entire=capture_entire))
        return self._look.scrollback if capture_entire else self._look.screen

    async def is_session_alive(self) -> bool:
        """As of the last look, if nothing has been typed since; else asked anew."""
        if self._alive is None:
            self._alive = bool(await super().is_session_alive())
        return self._alive

    @property
    def _look_command(self) -> str:
        name = self._session_name
        return (
            f"exec tmux capture-pane -p -S - -t {name} \\; "
            f"display-message -p -t {name} '{self._border} {_PANE_FORMAT}' \\; capture-pane -p -t {name}"
        )

    async def _exec(self, script: str) -> ExecResult:
        """One trip. Environments run commands with whatever shell they have; the scripts are bash's."""
        bash = (
            script
            if isinstance(self.environment, LocalEnvironment)
            else f"exec bash -c {shlex.quote(script)}"
        )
        return await self.environment.exec(bash, user=self._user)

    def _take_look(self, output: str, alive: bool) -> None:
        scrollback, _, rest = output.partition(self._border)
        pane, _, screen = rest.partition("\n")
        self._look = _Look(scrollback, screen, alive)
        self._alive = alive
        fields = pane.split()
        if len(fields) == len(_PANE_FORMAT.split()):
            self._pane = "shell_pid={} tmux_pid={} pane_tty={}".format(*fields)


_PANE_FORMAT = "#{pane_pid} #{pid} #{pane_tty}"
