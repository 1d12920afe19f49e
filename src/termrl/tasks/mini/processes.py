"""Tasks about processes: one of several that misbehaves, and a job that thinks it is running already."""

from termrl.tasks.mini.task import MiniTask

_RUNAWAY = MiniTask(
    name="runaway-writer",
    category="processes",
    difficulty="medium",
    instruction="""
Three workers are running on this machine, all started as `bash /app/worker.sh NAME`. One of them keeps
filling /app/spool with files, which it should not. Find out which, end that one and only that one, and
write its NAME to /app/answer.txt. Then empty /app/spool but keep the directory. The other two workers have
to keep running.
""",
    files={
        "worker.sh": """\
#!/bin/bash
# A worker: it beats once a second, and does what its orders say.
cd /app
orders=/app/orders/$(printf '%s' "$1" | cksum | cut -d' ' -f1)
while true; do
  date +%s > "beats/$1"
  [ -f "$orders" ] && . "$orders"
  sleep 0.5
done
""",
    },
    setup="""
mkdir spool beats orders
# The orders are named by a checksum, so that no list of files tells whose they are.
for name in heron ibis stork; do
  echo ': nothing to do' > "orders/$(printf '%s' $name | cksum | cut -d' ' -f1)"
done
echo 'mktemp -p /app/spool job.XXXXXX > /dev/null' > "orders/$(printf '%s' ibis | cksum | cut -d' ' -f1)"
""",
    start="""
mkdir /run/started 2>/dev/null || exit 0
for name in heron ibis stork; do
  setsid bash /app/worker.sh $name > /dev/null 2>&1 < /dev/null &
done
""",
    solve="""
for name in heron ibis stork; do
  orders=orders/$(printf '%s' $name | cksum | cut -d' ' -f1)
  grep -q spool "$orders" && bad=$name
done
for directory in /proc/[0-9]*; do
  if [ "$(tr '\\0' ' ' < "$directory/cmdline" 2>/dev/null)" = "bash /app/worker.sh $bad " ]; then
    kill "${directory#/proc/}"
  fi
done
sleep 1
rm -f spool/*
echo "$bad" > answer.txt
""",
    test="""
running() { cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -q "[w]orker.sh $1 "; }
check the right one was found -- same answer.txt ibis
check it is gone -- eval '! running ibis'
check heron is still there -- running heron
check stork is still there -- running stork
sleep 2
check the spool is there and stays empty -- bash -c '[ -d spool ] && [ -z "$(ls -A spool)" ]'
check the others still beat -- test $(($(date +%s) - $(cat beats/heron))) -lt 3
""",
)

_STALE_LOCKS = MiniTask(
    name="stale-locks",
    category="processes",
    difficulty="medium",
    instruction="""
`/app/nightly.sh` imports the parts in /app/parts one after the other and writes /app/report.txt at its end.
It refuses to work on a part that has a lock, /app/locks/PART.lock, which holds the id of the process that
works on it. Some locks were left behind by processes that no longer exist or are by now something else
altogether; remove those. One part is really being worked on, by a process that runs /app/importer.sh: leave
that one and its lock alone until it is done by itself, and let it finish. Then run nightly.sh so that the
report covers all parts.
""",
    files={
        "nightly.sh": """\
#!/bin/bash
cd /app
for part in parts/*; do
  name=$(basename "$part")
  if [ -e "locks/$name.lock" ]; then echo "$name is locked by $(cat "locks/$name.lock")"; exit 1; fi
  [ -e "done/$name" ] || { wc -l < "$part" > "done/$name"; echo nightly > "done/$name.by"; }
done
for part in parts/*; do name=$(basename "$part"); echo "$name $(cat "done/$name")"; done > report.txt
echo "report written"
""",
        "importer.sh": """\
#!/bin/bash
# Imports one part slowly; gives its lock back when it is done.
cd /app
trap 'exit 1' TERM INT
for beat in $(seq 24); do sleep 0.5; done
wc -l < "parts/$1" > "done/$1"
echo importer > "done/$1.by"
rm -f "locks/$1.lock"
""",
        "parts/apples": "1\n2\n3\n",
        "parts/figs": "1\n2\n",
        "parts/grapes": "1\n2\n3\n4\n5\n",
        "parts/pears": "1\n",
    },
    setup="mkdir locks done; chmod +x nightly.sh importer.sh",
    start="""
mkdir /run/started 2>/dev/null || exit 0
setsid bash /app/importer.sh grapes > /dev/null 2>&1 < /dev/null &
echo $! > locks/grapes.lock
# A process that has nothing to do with it now has the id in this lock.
setsid sleep 100000 > /dev/null 2>&1 < /dev/null &
echo $! > locks/apples.lock
echo 4194000 > locks/figs.lock
""",
    solve="""
for lock in locks/*.lock; do
  if ! tr '\\0' ' ' < "/proc/$(cat "$lock")/cmdline" 2>/dev/null | grep -q importer.sh; then rm "$lock"; fi
done
while [ -e locks/grapes.lock ]; do sleep 0.5; done
./nightly.sh
""",
    test="""
check the report covers all parts -- same report.txt $'apples 3\\nfigs 2\\ngrapes 5\\npears 1'
check the importer did its part -- same done/grapes.by importer
check nightly did the others -- test "$(cat done/apples.by done/figs.by done/pears.by | sort -u)" = nightly
check no lock is left -- test -z "$(ls -A locks)"
asleep() { cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -q '[s]leep 100000'; }
check what had nothing to do with it was left alone -- asleep
""",
)

TASKS = (_RUNAWAY, _STALE_LOCKS)
