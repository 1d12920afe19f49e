"""Terminus-2's tmux session with fewer trips into the sandbox, showing the model the same screens.

Stock asks four times a turn (is the session alive, type, whole scrollback, visible screen) and four
times at the start; here a look at the terminal is one trip that answers all but the typing. The one
addition is that the first look waits, for at most a second, until the shell has drawn its prompt, so
that the first prompt does not depend on how fast the machine was.
"""

import uuid
from dataclasses import dataclass
from typing import Any

from termrl.agents.stock import TmuxSession

_NO_TMUX = 127
_HISTORY_LIMIT = 10_000_000


@dataclass(frozen=True, slots=True)
class _Look:
    scrollback: str
    screen: str
    alive: bool


class LeanTmuxSession(TmuxSession):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._border = uuid.uuid4().hex
        self._look: _Look | None = None
        self._alive: bool | None = None

    async def start(self) -> None:
        name = self._session_name
        result = await self.environment.exec(
            f"command -v tmux >/dev/null 2>&1 || exit {_NO_TMUX}; "
            f"{self._tmux_start_session} \\; set-option -g history-limit {_HISTORY_LIMIT} || exit 1; "
            f"n=0; until tmux capture-pane -p -t {name} | grep -q . || [ $n -ge 50 ]; "
            "do n=$((n+1)); sleep 0.02; done; "
            f"{self._look_command}",
            user=self._user,
        )
        if result.return_code == _NO_TMUX:
            await super().start()
        elif result.return_code != 0:
            raise RuntimeError(f"Failed to start tmux session. Error: {result.stderr}")
        else:
            self._look = self._read_look(result.stdout or "", alive=True)
            self._alive = True

    async def send_keys(self, *args: Any, **kwargs: Any) -> None:
        self._look = self._alive = None
        await super().send_keys(*args, **kwargs)

    async def get_incremental_output(self) -> str:
        if self._look is None:
            result = await self.environment.exec(self._look_command, user=self._user)
            self._look = self._read_look(result.stdout or "", alive=result.return_code == 0)
        self._alive = self._look.alive
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
            f"tmux capture-pane -p -S - -t {name} \\; display-message -p {self._border} \\; "
            f"capture-pane -p -t {name}"
        )

    def _read_look(self, output: str, alive: bool) -> _Look:
        scrollback, _, screen = output.partition(f"{self._border}\n")
        return _Look(scrollback, screen, alive)
