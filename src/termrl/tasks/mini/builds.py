"""Tasks about a broken build: a Makefile, and a program whose own tests fail."""

from termrl.tasks.mini.task import MiniTask

_MAKEFILE = MiniTask(
    name="makefile-that-fails",
    category="builds",
    difficulty="medium",
    instruction="""
`make` in /app/book should build build/book.txt out of the chapters and build/index.txt beside it. It fails,
for several reasons, and what it builds is not rebuilt when a chapter changes. Repair the Makefile, and only
the Makefile, so that:
- `make` on a fresh checkout builds both files; `make clean` removes the directory build;
- the book has all chapters in the order of their numbers (2 before 10), each with its title in capitals;
- the index has one line for each chapter, its number and its title, in the same order;
- a second `make` does nothing, and `make` after a change of one chapter rebuilds what depends on it.
The tools in tools/ work: `tools/chapter FILE` prints a chapter for the book, `tools/entry FILE` its line
for the index.
Leave both files built.
""",
    files={
        "book/Makefile": """\
CHAPTERS = $(wildcard chapter/*.txt)
PARTS = $(CHAPTERS:chapters/%.txt=build/%.part)

all: build/book.txt

build/%.part: chapters/%.txt
        tools/chapter $< > $@

build/book.txt: $(PARTS)
\tcat $(PARTS) > $@

build/index.txt:
\tfor c in $(CHAPTERS); do tools/entry $c; done > $@

clear:
\trm -r build
""",
        "book/tools/chapter": '#!/bin/sh\nhead -n 1 "$1" | tr a-z A-Z\ntail -n +2 "$1"\n',
        "book/tools/entry": '#!/bin/sh\nprintf "%s %s\\n" "$(basename "$1" .txt)" "$(head -n 1 "$1")"\n',
        "book/chapters/1.txt": "Beginning\nIt began.\n",
        "book/chapters/2.txt": "Middle\nIt went on.\n",
        "book/chapters/10.txt": "End\nIt ended.\n",
    },
    setup="chmod +x book/tools/*",
    solve="""
cd book
cat > Makefile <<'EOF'
CHAPTERS = $(shell ls chapters/*.txt | sort -t/ -k2 -n)
PARTS = $(CHAPTERS:chapters/%.txt=build/%.part)

all: build/book.txt build/index.txt

build:
	mkdir -p build

build/%.part: chapters/%.txt | build
	tools/chapter $< > $@

build/book.txt: $(PARTS)
	cat $(PARTS) > $@

build/index.txt: $(CHAPTERS) | build
	for c in $(CHAPTERS); do tools/entry $$c; done > $@

clean:
	rm -rf build

.PHONY: all clean
EOF
make
""",
    test="""
cd /app/book
book=$'BEGINNING\\nIt began.\\nMIDDLE\\nIt went on.\\nEND\\nIt ended.'
check the book is there -- same build/book.txt "$book"
check the index is there -- same build/index.txt $'1 Beginning\\n2 Middle\\n10 End'
check a second make does nothing -- make -q
check clean cleans -- bash -c 'make clean >/dev/null && [ ! -e build ]'
check it is built from nothing -- make
check the same again -- same build/book.txt "$book"
sleep 1.1
printf 'Centre\\nIt went on.\\n' > chapters/2.txt
check a change is noticed -- eval '! make -q'
make
check the book has it -- same build/book.txt "${book/MIDDLE/CENTRE}"
check the index has it -- same build/index.txt $'1 Beginning\\n2 Centre\\n10 End'
check only the Makefile was changed -- cmp tools/chapter - <<'EOF'
#!/bin/sh
head -n 1 "$1" | tr a-z A-Z
tail -n +2 "$1"
EOF
""",
)

_TESTS = """\
import unittest

from ledger import Account, Ledger, parse


class TestLedger(unittest.TestCase):
    def test_parse(self):
        self.assertEqual(parse("rent -450.25"), ("rent", -45025))
        self.assertEqual(parse("pay 1,200"), ("pay", 120000))
        self.assertEqual(parse("tea -0.05"), ("tea", -5))

    def test_balance(self):
        account = Account("a")
        account.add("pay", 120000)
        account.add("rent", -45025)
        self.assertEqual(account.balance(), 74975)

    def test_accounts_do_not_share_entries(self):
        one, two = Account("one"), Account("two")
        one.add("x", 5)
        self.assertEqual(two.entries, [])

    def test_transfer(self):
        ledger = Ledger()
        ledger.open("a").add("pay", 100)
        ledger.open("b")
        ledger.transfer("a", "b", 30)
        self.assertEqual([ledger.accounts[n].balance() for n in "ab"], [70, 30])

    def test_transfer_beyond_the_balance_changes_nothing(self):
        ledger = Ledger()
        ledger.open("a").add("pay", 10)
        ledger.open("b")
        with self.assertRaises(ValueError):
            ledger.transfer("a", "b", 30)
        self.assertEqual([ledger.accounts[n].balance() for n in "ab"], [10, 0])

    def test_report(self):
        ledger = Ledger()
        ledger.open("b").add("x", 5)
        ledger.open("a").add("y", -1234)
        self.assertEqual(ledger.report(), "a -12.34\\nb 0.05")
"""

_PROGRAM = MiniTask(
    name="program-that-fails-its-tests",
    category="builds",
    difficulty="hard",
    instruction="""
/app/ledger is a small Python package, and /app/test_ledger.py its tests; `python3 -m unittest` in /app runs
them. They do not even start. Repair the package until all of them pass. The tests are right: do not change
them, and do not make the package know about them. The package has to stay a package of the modules it has:
`__init__`, `account`, `book`, `money`.
""",
    files={
        "test_ledger.py": _TESTS,
        "ledger/__init__.py": """\
from .book import Ledger
from .account import Account
from .monei import parse
""",
        "ledger/account.py": """\
from .book import Ledger


class Account:
    entries = []

    def __init__(self, name):
        self.name = name

    def add(self, what, cents):
        self.entries.append((what, cents))

    def balance(self):
        return sum(cents for cents, what in self.entries)
""",
        "ledger/book.py": """\
from .account import Account
from .money import show


class Ledger:
    def __init__(self):
        self.accounts = {}

    def open(self, name):
        self.accounts[name] = Account(name)

    def transfer(self, source, target, cents):
        self.accounts[target].add("transfer", cents)
        self.accounts[source].add("transfer", -cents)
        if self.accounts[source].balance() < 0:
            raise ValueError("not enough")

    def report(self):
        return "\\n".join(f"{name} {show(each.balance())}" for name, each in self.accounts.items())
""",
        "ledger/money.py": """\
def parse(line):
    what, amount = line.split()
    return what, int(float(amount) * 100)


def show(cents):
    return f"{cents // 100}.{cents % 100}"
""",
    },
    solve="""
cat > ledger/__init__.py <<'EOF'
from .account import Account
from .book import Ledger
from .money import parse
EOF
cat > ledger/account.py <<'EOF'
class Account:
    def __init__(self, name):
        self.name = name
        self.entries = []

    def add(self, what, cents):
        self.entries.append((what, cents))

    def balance(self):
        return sum(cents for what, cents in self.entries)
EOF
cat > ledger/book.py <<'EOF'
from .account import Account
from .money import show


class Ledger:
    def __init__(self):
        self.accounts = {}

    def open(self, name):
        self.accounts[name] = Account(name)
        return self.accounts[name]

    def transfer(self, source, target, cents):
        if self.accounts[source].balance() < cents:
            raise ValueError("not enough")
        self.accounts[target].add("transfer", cents)
        self.accounts[source].add("transfer", -cents)

    def report(self):
        return "\\n".join(f"{name} {show(self.accounts[name].balance())}" for name in sorted(self.accounts))
EOF
cat > ledger/money.py <<'EOF'
from decimal import Decimal


def parse(line):
    what, amount = line.split()
    return what, int(Decimal(amount.replace(",", "")) * 100)


def show(cents):
    sign = "-" if cents < 0 else ""
    return f"{sign}{abs(cents) // 100}.{abs(cents) % 100:02}"
EOF
python3 -m unittest -q
""",
    test=f"""
mkdir -p /tests/run && cat > /tests/run/test_ledger.py <<'EOF'
{_TESTS}EOF
cat > /tests/run/test_more.py <<'EOF'
import unittest

import ledger


class TestMore(unittest.TestCase):
    def test_what_the_other_tests_do_not_say(self):
        self.assertEqual(ledger.parse("fee -1,000.10"), ("fee", -100010))
        book = ledger.Ledger()
        book.open("z").add("x", -7)
        self.assertEqual(book.report(), "z -0.07")
EOF
check the tests are as they were -- cmp test_ledger.py /tests/run/test_ledger.py
cd /tests/run
check they pass -- env PYTHONPATH=/app python3 -B -m unittest -q
modules=$(cd /app/ledger && ls *.py | tr '\\n' ' ')
check the modules are those it had -- test "$modules" = '__init__.py account.py book.py money.py '
""",
)

TASKS = (_MAKEFILE, _PROGRAM)
