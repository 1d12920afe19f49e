"""Tasks about permissions: a tree that breaks its policy, and a script that will not run."""

from termrl.tasks.mini.task import MiniTask

_POLICY = MiniTask(
    name="modes-by-policy",
    category="permissions",
    difficulty="medium",
    instruction="""
The files below /app/srv have modes that break the policy in /app/POLICY. Give every file and directory
exactly the mode that the policy asks for. Change nothing else: no content, no names, no files of your own.
Links stay links.
""",
    files={
        "POLICY": """\
Modes below /app/srv. Where more than one rule fits, the last one counts.
1. Directories: 755.
2. Files: 644.
3. Files that begin with #! can be executed: 755.
4. Everything below srv/private: files 600, directories 700, srv/private itself included.
5. Files whose name ends in .key are 400, wherever they are.
6. srv/upload is for everyone, but nobody removes what is another's: 1777.
""",
        "srv/index.html": "<h1>hello</h1>\n",
        "srv/bin/backup": "#!/bin/sh\necho backup\n",
        "srv/bin/notes.txt": "not a program\n",
        "srv/bin/site.key": "k1\n",
        "srv/private/plan.txt": "plan\n",
        "srv/private/tools/clean": "#!/bin/sh\necho clean\n",
        "srv/private/tools/own.key": "k2\n",
        "srv/upload/readme with blanks.txt": "put files here\n",
    },
    setup="""
ln -s ../bin/backup srv/private/backup
chmod 777 srv srv/bin srv/index.html; chmod 755 srv/bin/notes.txt srv/bin/site.key
chmod 644 srv/bin/backup; chmod 755 srv/private srv/private/tools srv/upload
chmod 666 srv/private/plan.txt srv/private/tools/clean srv/private/tools/own.key
chmod 600 'srv/upload/readme with blanks.txt'
""",
    solve="""
find srv -type d -exec chmod 755 {} +
find srv -type f -exec chmod 644 {} +
find srv -type f | while IFS= read -r f; do [ "$(head -c 2 "$f")" = '#!' ] && chmod 755 "$f"; done || true
find srv/private -type f -exec chmod 600 {} +
find srv/private -type d -exec chmod 700 {} +
find srv -type f -name '*.key' -exec chmod 400 {} +
chmod 1777 srv/upload
""",
    test="""
modes=$(find srv \\( -type f -o -type d \\) -printf '%m %p\\n' | sort -k2)
check the modes are those of the policy -- test "$modes" = "$(cat <<'EOF'
755 srv
755 srv/bin
755 srv/bin/backup
644 srv/bin/notes.txt
400 srv/bin/site.key
644 srv/index.html
700 srv/private
600 srv/private/plan.txt
700 srv/private/tools
600 srv/private/tools/clean
400 srv/private/tools/own.key
1777 srv/upload
644 srv/upload/readme with blanks.txt
EOF
)"
check the link is a link -- test "$(readlink srv/private/backup)" = ../bin/backup
check contents are as they were -- test "$(cat srv/bin/* srv/private/tools/*)" = "$(cat <<'EOF'
#!/bin/sh
echo backup
not a program
k1
#!/bin/sh
echo clean
k2
EOF
)"
""",
)

_SCRIPT = MiniTask(
    name="script-that-will-not-run",
    category="permissions",
    difficulty="medium",
    instruction="""
`/app/release.sh` should run, as `./release.sh`, and write /app/release.txt from the parts in /app/parts. It
does not: more than one thing is wrong with how its files came onto this machine, though not with what the
script is meant to do. Find out and put it right, run it, and leave /app/release.txt there. The commands in
release.sh and parts/header.sh are correct as they are written: do not rewrite them.
""",
    files={
        "release.sh": """\
#!/bin/bash\r
set -eu\r
cd "$(dirname "$0")"\r
umask 022\r
./parts/header.sh > release.txt\r
cat parts/body/*.txt >> release.txt\r
tail -n 1 parts/footer.txt >> release.txt\r
echo "released"\r
""",
        "parts/header.sh": '#!/usr/bin/env bsh\necho "release $(cat parts/version)"\n',
        "parts/version": "4.2\n",
        "parts/body/1-news.txt": "news: faster\n",
        "parts/body/2-fixes.txt": "fixes: many\n",
        "parts/footers/footer.txt": "line\nthe end\n",
    },
    setup="chmod 644 release.sh parts/header.sh; ln -s footer/footer.txt parts/footer.txt",
    solve="""
sed -i 's/\\r$//' release.sh
sed -i '1s/bsh/bash/' parts/header.sh
chmod +x release.sh parts/header.sh
ln -sf footers/footer.txt parts/footer.txt
./release.sh
""",
    test="""
check the release is whole -- same release.txt $'release 4.2\\nnews: faster\\nfixes: many\\nthe end'
rm -f release.txt
check it can be made again -- test "$(./release.sh)" = released
check and is the same again -- same release.txt $'release 4.2\\nnews: faster\\nfixes: many\\nthe end'
check the commands are those it came with -- test "$(tr -d '\\r' < release.sh | sed 1d)" = "$(cat <<'EOF'
set -eu
cd "$(dirname "$0")"
umask 022
./parts/header.sh > release.txt
cat parts/body/*.txt >> release.txt
tail -n 1 parts/footer.txt >> release.txt
echo "released"
EOF
)"
check the header too -- test "$(sed 1d parts/header.sh)" = 'echo "release $(cat parts/version)"'
""",
)

TASKS = (_POLICY, _SCRIPT)
