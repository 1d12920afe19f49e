"""Tasks about archives: archives within archives, and a backup that is made of several."""

from random import Random

from termrl.tasks.mini.task import MiniTask


def _nested() -> MiniTask:
    rng = Random("nested-archives")
    found: dict[str, str] = {}
    scripts = ["mkdir work"]
    for host in ("alder", "birch", "cedar", "elm"):
        scripts.append(f"mkdir -p work/{host}/etc/app.d work/{host}/var")
        for name in ("app.conf", "app.d/limits.conf", "app.d/site.conf"):
            if rng.random() < 0.8:
                text = f"host={host} name={name.replace('/', '-')} value={rng.randrange(10000)}"
                found[f"{host}/etc/{name}"] = text
                scripts.append(f"echo '{text}' > work/{host}/etc/{name}")
        scripts.append(f"echo {rng.randrange(10**9)} > work/{host}/var/state.dat")
        scripts.append(f"echo 'old' > work/{host}/etc/app.conf.bak")
    scripts += [
        "(cd work && tar czf alder.tar.gz alder && tar cf birch.tar birch && rm -r alder birch)",
        "(cd work && gzip -n birch.tar && mv birch.tar.gz birch.backup)",
        "(cd work && tar cjf inner.tar.bz2 cedar && tar cf east.tar alder.tar.gz inner.tar.bz2)",
        "(cd work && tar cf west.tar birch.backup elm && tar czf ../everything.tgz east.tar west.tar)",
        "rm -r work",
    ]
    listing = "\\n".join(f"{path}: {found[path]}" for path in sorted(found))
    return MiniTask(
        name="nested-archives",
        category="archives",
        difficulty="medium",
        instruction="""
/app/everything.tgz holds archives which hold archives, of more than one format and not all with a telling
name. Somewhere in them are directories of four hosts, each with an `etc`. Bring every file whose name ends
in .conf to /app/out, below the host's name and with its path kept, such as /app/out/alder/etc/app.conf, and
nothing else. Leave everything.tgz as it is.
""",
        setup="\n".join(scripts),
        solve="""
mkdir -p /tmp/open out
tar xzf everything.tgz -C /tmp/open
cd /tmp/open
tar xf east.tar; tar xf west.tar
tar xzf alder.tar.gz; tar xjf inner.tar.bz2; tar xzf birch.backup
find alder birch cedar elm -name '*.conf' -exec cp --parents {} /app/out \\;
""",
        test=f"""
listing=$(cd out && find . -type f | sort | while read -r f; do echo "${{f#./}}: $(cat "$f")"; done)
check out has the .conf files and nothing else -- test "$listing" = $'{listing}'
check the archive is still there -- bash -c 'tar tzf everything.tgz | grep -q west.tar'
""",
    )


def _restore() -> MiniTask:
    rng = Random("restore-a-day")
    days = ["mon", "tue", "wed", "thu", "fri"]
    state: dict[str, str] = {}
    scripts = ["mkdir backups"]
    expected: dict[str, str] = {}
    for number, day in enumerate(days):
        changed: dict[str, str] = {}
        deleted: list[str] = []
        names = [f"{folder}/{name}.txt" for folder in ("docs", "data") for name in "abcdef"]
        for name in rng.sample(names, 5 if number else 9):
            changed[name] = f"{name} as of {day} {rng.randrange(1000)}"
        if number:
            deleted = rng.sample([name for name in sorted(state) if name not in changed], 2)
        for name in deleted:
            del state[name]
        state.update(changed)
        scripts.append("mkdir stage")
        for name, text in sorted(changed.items()):
            scripts.append(f"mkdir -p stage/{name.split('/')[0]}; echo '{text}' > stage/{name}")
        if deleted:
            scripts.append("printf '%s\\n' " + " ".join(deleted) + " > stage/.deleted")
        kind = "full" if not number else "changes"
        scripts.append(f"tar czf backups/{number + 1}-{day}-{kind}.tar.gz -C stage . && rm -r stage")
        if day == "thu":
            expected = dict(state)
    listing = "\\n".join(f"{path}: {expected[path]}" for path in sorted(expected))
    return MiniTask(
        name="restore-a-day",
        category="archives",
        difficulty="medium",
        instruction="""
/app/backups has Monday's full backup and the changes of every day after it. A file `.deleted` in an archive
of changes lists files that were deleted that day; it is not itself part of what was backed up. Restore the
state of Thursday evening to /app/restored: all files that existed then, as they were then, and no others.
""",
        setup="\n".join(scripts),
        solve="""
mkdir restored
for archive in backups/[1-4]-*; do
  tar xzf "$archive" -C restored
  if [ -f restored/.deleted ]; then
    while read -r name; do rm -f "restored/$name"; done < restored/.deleted
    rm restored/.deleted
  fi
done
""",
        test=f"""
listing=$(cd restored && find . -type f | sort | while read -r f; do echo "${{f#./}}: $(cat "$f")"; done)
check restored is as it was on Thursday -- test "$listing" = $'{listing}'
""",
    )


TASKS = (_nested(), _restore())
