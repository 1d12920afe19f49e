"""Tasks about git: a lost commit, a merge, the commit that broke something, a secret in the past."""

from random import Random

from termrl.tasks.mini.task import MiniTask

_IDENTITY = """
export GIT_AUTHOR_NAME=Ada GIT_AUTHOR_EMAIL=ada@example.org
export GIT_COMMITTER_NAME=Ada GIT_COMMITTER_EMAIL=ada@example.org
export GIT_AUTHOR_DATE='2025-01-06T10:00:00Z' GIT_COMMITTER_DATE='2025-01-06T10:00:00Z'
git config --global --add safe.directory '*'
git config --global init.defaultBranch main
"""

_LOST_COMMIT = MiniTask(
    name="lost-commit",
    category="git",
    difficulty="medium",
    instruction="""
In the git repository /app/site someone ran `git reset --hard` and then went on working. One commit is no
longer on any branch: the one that added the page about prices. Bring it back: make a branch `rescue` whose
newest commit is exactly that lost commit. Leave the branch main as it is. Then write the text of that
commit's file prices.txt to /app/answer.txt.
""",
    setup=f"""
{_IDENTITY}
git init -q site
cd site
echo home > index.txt; git add .; git commit -qm 'Home page'
echo about > about.txt; git add .; git commit -qm 'About us'
echo draft > notes.txt; git add .; git commit -qm 'Notes that nobody needs'
git reset -q --hard HEAD~1
printf 'small 3\\nlarge 7\\n' > prices.txt; git add .; git commit -qm 'Page about prices'
git reset -q --hard HEAD~1
echo contact > contact.txt; git add .; git commit -qm 'Contact'
""",
    solve="""
cd site
for commit in $(git reflog --format=%H); do
  if git cat-file -e "$commit:prices.txt" 2>/dev/null; then lost=$commit; fi
done
git branch rescue "$lost"
git show rescue:prices.txt > ../answer.txt
""",
    test="""
cd /app/site
check rescue ends in the lost commit -- test "$(git log -1 --format=%s rescue)" = 'Page about prices'
made=$(git show -s --format=%cd rescue)
check it is that commit and no copy -- test "$made" = 'Mon Jan 6 10:00:00 2025 +0000'
check it stands on what it stood on -- test "$(git log -1 --format=%s rescue~1)" = 'About us'
check main is as it was -- test "$(git log --format=%s main | tr '\\n' ,)" = 'Contact,About us,Home page,'
cd /app
check the text is there -- same answer.txt $'small 3\\nlarge 7'
""",
)

_CHECK = """\
#!/bin/bash
# apples 30, pears 45, plums 20; from 10 pieces on a tenth off; -v says the unit price first.
expect() { [ "$(./price.sh "${@:2}")" = "$1" ] || { echo "price.sh ${*:2}: expected $1"; exit 1; }; }
expect 60 apple 2
expect 405 pear 10
expect 540 plum 30
expect $'20 each\\n360' -v plum 20
echo all good
"""

_MERGE = MiniTask(
    name="finish-a-merge",
    category="git",
    difficulty="medium",
    instruction="""
The git repository /app/shop is in the middle of a merge of the branch `discounts` into main, with conflicts.
Finish it so that both sides' changes work together: `./check.sh` says what is expected and must succeed.
Commit the merge on main, with nothing left uncommitted. Do not change check.sh.
""",
    setup=f"""
{_IDENTITY}
git init -q shop
cd shop
cat > price.sh <<'EOF'
#!/bin/bash
# price.sh ITEM AMOUNT: what it costs, in cents.
unit() {{ case $1 in apple) echo 30 ;; pear) echo 45 ;; *) exit 1 ;; esac; }}
echo $(($(unit "$1") * $2))
EOF
cat > check.sh <<'EOF'
{_CHECK}EOF
chmod +x price.sh check.sh
git add .; git commit -qm 'Prices'
git checkout -q -b discounts
cat > price.sh <<'EOF'
#!/bin/bash
# price.sh ITEM AMOUNT: what it costs, in cents. From 10 pieces on a tenth is off.
unit() {{ case $1 in apple) echo 30 ;; pear) echo 45 ;; *) exit 1 ;; esac; }}
total=$(($(unit "$1") * $2))
[ "$2" -lt 10 ] || total=$((total * 9 / 10))
echo $total
EOF
git commit -qam 'A tenth off from ten pieces on'
git checkout -q main
cat > price.sh <<'EOF'
#!/bin/bash
# price.sh [-v] ITEM AMOUNT: what it costs, in cents; -v says the unit price too.
unit() {{ case $1 in apple) echo 30 ;; pear) echo 45 ;; plum) echo 20 ;; *) exit 1 ;; esac; }}
if [ "$1" = -v ]; then shift; echo "$(unit "$1") each"; fi
echo $(($(unit "$1") * $2))
EOF
git commit -qam 'Plums, and -v'
git merge discounts > /dev/null 2>&1 || true
""",
    solve="""
cd shop
cat > price.sh <<'EOF'
#!/bin/bash
# price.sh [-v] ITEM AMOUNT: what it costs, in cents; -v says the unit price too. From 10 on a tenth is off.
unit() { case $1 in apple) echo 30 ;; pear) echo 45 ;; plum) echo 20 ;; *) exit 1 ;; esac; }
if [ "$1" = -v ]; then shift; echo "$(unit "$1") each"; fi
total=$(($(unit "$1") * $2))
[ "$2" -lt 10 ] || total=$((total * 9 / 10))
echo $total
EOF
./check.sh
git add price.sh
git -c user.name=Ada -c user.email=ada@example.org commit -qm 'Merge discounts'
""",
    test=f"""
cd /app/shop
check the checks were not changed -- cmp check.sh - <<'EOF'
{_CHECK}EOF
check they succeed -- bash check.sh
check nothing is left uncommitted -- test -z "$(git status --porcelain)"
parents=$(git log -1 --format=%s main^1; git log -1 --format=%s main^2)
check main ends in a merge of both -- test "$parents" = $'Plums, and -v\\nA tenth off from ten pieces on'
check what is committed works -- bash -c 'git show main:price.sh | diff - price.sh'
""",
)


def _who_broke_it() -> MiniTask:
    rng = Random("who-broke-it")
    bad = 23
    commits = []
    for number in range(1, 41):
        if number == bad:
            # The change hides behind an ordinary message, in a file that many commits touch.
            change = "sed -i 's/rate=19/rate=17/' tax.sh"
        else:
            change = rng.choice(
                (f"echo 'note {number}' >> NOTES", f"sed -i 's/^# revision.*/# revision {number}/' tax.sh")
            )
        message = rng.choice(("Tidy up", "Wording", "Small things", "Review comments"))
        commits.append(f"{change}; git add -A; git commit -qm '{message} ({number})'")
    return MiniTask(
        name="who-broke-it",
        category="git",
        difficulty="medium",
        instruction="""
In the git repository /app/billing, `./tax.sh 100` should print 19. It does not any more; at the tag v1 it
did. Find the first commit after which it was wrong and write its full hash to /app/answer.txt. Leave the
repository on main, with nothing changed.
""",
        setup=f"""
{_IDENTITY}
git init -q billing
cd billing
printf '#!/bin/bash\\n# revision 0\\nrate=19\\necho $(($1 * rate / 100))\\n' > tax.sh
chmod +x tax.sh
git add .; git commit -qm 'Tax'; git tag v1
{chr(10).join(commits)}
""",
        solve="""
cd billing
git bisect start main v1 > /dev/null
git bisect run bash -c '[ "$(./tax.sh 100)" = 19 ]' > /dev/null
git rev-parse refs/bisect/bad > ../answer.txt
git bisect reset > /dev/null 2>&1
""",
        test=f"""
commit=$(git -C billing log --format='%H %s' main | awk '/\\({bad}\\)$/ {{ print $1 }}')
check the commit is right -- same answer.txt "$commit"
cd /app/billing
check the repository is on main -- test "$(git symbolic-ref --short HEAD)" = main
check nothing was changed -- test -z "$(git status --porcelain)"
""",
    )


_SECRET = MiniTask(
    name="secret-in-the-past",
    category="git",
    difficulty="hard",
    instruction="""
In the git repository /app/tool the file deploy.key was committed by mistake, and removed later. It must
vanish from the whole history of main: no commit may have it, and its content must be nowhere in the
repository any more, not even in objects that no branch needs. Everything else stays: the same commits in
the same order with the same messages, authors and dates, and all other files. A commit that did nothing
but add or remove the key may stay as an empty one or go.
""",
    setup=f"""
{_IDENTITY}
git init -q tool
cd tool
echo one > a.txt; git add .; git commit -qm 'First'
echo two > b.txt; printf 'KEY-7d1f0c55-SECRET\\n' > deploy.key; git add .; git commit -qm 'Second'
echo three >> a.txt; git add .; git commit -qm 'Third'
printf 'KEY-9a2b-SECRET\\n' >> deploy.key; echo four > c.txt; git add .; git commit -qm 'Fourth'
git rm -q deploy.key; git commit -qm 'Remove the key'
echo six > d.txt; git add .; git commit -qm 'Sixth'
""",
    solve="""
cd tool
export FILTER_BRANCH_SQUELCH_WARNING=1
git filter-branch -f --index-filter 'git rm -q --cached --ignore-unmatch deploy.key' main > /dev/null 2>&1
git update-ref -d refs/original/refs/heads/main
git reflog expire --expire=now --all
git gc -q --prune=now
""",
    test="""
cd /app/tool
check no commit has the key -- test -z "$(git log --all --format=%H -- deploy.key)"
leaks() {
  git cat-file --batch-check --batch-all-objects | awk '$2 == "blob" { print $1 }' |
    while read -r blob; do git cat-file blob "$blob"; done | grep -q SECRET
}
check the content of the key is in no object -- eval '! leaks'
subjects=$(git log --reverse --format=%s main | grep -v '^Remove the key$' | tr '\\n' ,)
check the commits are there in order -- test "$subjects" = 'First,Second,Third,Fourth,Sixth,'
dates=$(git log --format='%an %ad' main | sort -u)
check authors and dates are the same -- test "$dates" = 'Ada Mon Jan 6 10:00:00 2025 +0000'
files=$(git ls-tree --name-only main | tr '\\n' ,)
check the other files are there -- test "$files" = 'a.txt,b.txt,c.txt,d.txt,'
second=$(git rev-list --reverse main | sed -n 2p)
check what was in them then is in them still -- test "$(git show "$second:b.txt")" = two
""",
)

TASKS = (_LOST_COMMIT, _MERGE, _who_broke_it(), _SECRET)
