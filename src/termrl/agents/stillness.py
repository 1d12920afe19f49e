"""The part of a trip into the sandbox that waits: until a command is done, at the latest for its duration.

Done means that whatever time is still left would not change the screen: the shell is asleep at its prompt
(readline holds the terminal raw), in the foreground, without a child; no other process has the terminal
open; and for a moment neither the shell nor tmux has run at all, so that nothing is left to be drawn. What
can't be seen counts as not done, and the wait is then as long as stock's: another shell, a /proc without
these files, a shell that never woke for the keys it was sent, or a `read` (which may have its own time-out).
"""

import re

MOMENT = 0.008
"""How long nothing may have run, in seconds."""

_LONGEST_PAUSE_MS = 80

FUNCTIONS = (
    r"""
now() { local t=${EPOCHREALTIME//[.,]/}; printf -v "$1" %d $((t / 1000)); }
nap() { read -r -t "$1" -u 9; } # from a terminal that nobody writes to: a wait without a process
ran() {
    local a b
    read -r a _ 2>/dev/null </proc/$shell_pid/schedstat || return 1
    read -r b _ 2>/dev/null </proc/$tmux_pid/schedstat || return 1
    printf -v "$1" %s "$a/$b"
}
alone() {
    local s c p f tty
    read -r s 2>/dev/null </proc/$shell_pid/stat || return 1
    case $s in *' (bash) S '*) ;; *) return 1 ;; esac
    s=${s##*) }
    set -- $s
    [ "$3" = "$6" ] && tty=$5 || return 1
    read -r c 2>/dev/null </proc/$shell_pid/task/$shell_pid/children
    [ -e /proc/$shell_pid/task/$shell_pid/children ] && [ -z "$c" ] || return 1
    for p in /proc/[0-9]*; do
        [ "$p" = /proc/$shell_pid ] && continue
        read -r s 2>/dev/null <"$p/stat" || continue
        s=${s##*) }
        set -- $s
        [ "$5" = "$tty" ] && return 1
        for f in "$p"/fd/*; do [ "$f" -ef "$pane_tty" ] && return 1; done
    done
    return 0
}
at_prompt() {
    case " $(stty -F "$pane_tty" -a 2>/dev/null)" in *' -icrnl'*' -icanon'*' -echo '*) return 0 ;; esac
    return 1
}
until_done() {
    local end at before=${2%/*} seen again pause=4 left
    if [ -z "$EPOCHREALTIME" ]; then # an older bash has no clock that fine
        printf -v left '%d.%03d' $(($1 / 1000)) $(($1 % 1000))
        nap "$left"
        return
    fi
    now end
    end=$((end + $1))
    while now at && [ "$at" -lt "$end" ]; do
        # tmux runs for every key; only the shell's own waking tells that the keys have come through.
        if ran seen && [ "${seen%/*}" != "$before" ] && alone; then
            nap MOMENT
            if ran again && [ "$again" = "$seen" ] && alone && at_prompt; then return; fi
        fi
        printf -v left '0.%03d' $((pause < end - at ? pause : end - at))
        nap "$left"
        pause=$((pause * 3 / 2 < LONGEST ? pause * 3 / 2 : LONGEST))
    done
}
[ -c /dev/ptmx ] && { exec 9<>/dev/ptmx; } 2>/dev/null || exec 9<> <(:)
""".replace("MOMENT", str(MOMENT))
    .replace("LONGEST", str(_LONGEST_PAUSE_MS))
    .strip()
)
"""For bash 5. `nap SECONDS`; `until_done MILLISECONDS RAN`, RAN being what `ran` said before the keys."""

NOT_WORTH_IT = 0.25
"""Waits up to so many seconds are waited out: looking whether they could end costs more than they last."""

_MAY_TIME_OUT = re.compile(r"\bread\b|\bTMOUT\b|\bselect\b|\btrap\b|\bexec\b")


def may_return_early(keystrokes: str) -> bool:
    """Whether the shell could be told apart from one that waits inside these keystrokes' command."""
    return not _MAY_TIME_OUT.search(keystrokes)
