"""Tasks about text: joining tables, layering settings, cleaning a list of people."""

from random import Random

from termrl.tasks.mini.task import MiniTask


def _join() -> MiniTask:
    rng = Random("sales-by-region")
    regions = {"north": "North, upper", "south": "South", "east": 'East "old town"', "west": "West"}
    customers = {}
    for number in range(60):
        customers[f"k{number:03}"] = rng.choice(list(regions.values()))
    rows = ["id,name,region"]
    for key, region in customers.items():
        name = rng.choice(("Ames, Jo", "Berg", "Cole", 'Dunn "DD"'))
        rows.append(f'{key},"{name.replace(chr(34), chr(34) * 2)}","{region.replace(chr(34), chr(34) * 2)}"')
    totals: dict[str, int] = {region: 0 for region in regions.values()}
    sales = ["sale;customer;cents;state"]
    for number in range(400):
        key = rng.choice([*customers, "k999"])
        cents = rng.randrange(100, 9000)
        state = rng.choice(("paid", "paid", "paid", "refunded", "open"))
        sales.append(f"{number};{key};{cents};{state}")
        if key in customers and state != "open":
            totals[customers[key]] += cents if state == "paid" else -cents
    table = "\n".join(f"{region}\t{totals[region]}" for region in sorted(totals))
    return MiniTask(
        name="sales-by-region",
        category="text",
        difficulty="medium",
        instruction="""
/app/customers.csv has customers with their region (comma-separated, with quoted fields), /app/sales.csv has
sales (separated by semicolons). Add up the cents for every region: a sale that is `paid` counts, one that
was `refunded` is taken off, one that is `open` does not count, nor does a sale of a customer who is not in
the list. Write /app/regions.tsv: one line for each region, the region's name as it is meant (without the
quoting of the CSV), a tab, the sum; sorted by name.
""",
        files={"customers.csv": "\n".join(rows) + "\n", "sales.csv": "\n".join(sales) + "\n"},
        solve="""
python3 - <<'EOF'
import csv
regions = {row["id"]: row["region"] for row in csv.DictReader(open("customers.csv"))}
sums = dict.fromkeys(regions.values(), 0)
for row in csv.DictReader(open("sales.csv"), delimiter=";"):
    sign = {"paid": 1, "refunded": -1}.get(row["state"], 0)
    if row["customer"] in regions:
        sums[regions[row["customer"]]] += sign * int(row["cents"])
with open("regions.tsv", "w") as out:
    for region in sorted(sums):
        print(region, sums[region], sep="\\t", file=out)
EOF
""",
        test=f"""
check the sums are right -- same regions.tsv "$(cat <<'EOF'
{table}
EOF
)"
""",
    )


_SETTINGS = MiniTask(
    name="layered-settings",
    category="text",
    difficulty="medium",
    instruction="""
Settings come in layers: /app/conf/defaults.ini, then the files of /app/conf/site.d in the order of their
names, then /app/conf/local.ini; what comes later counts. `key =` with nothing after it takes a setting
away. Lines that begin with ; or # are comments, and so is what follows ` ;` on a line. Keys do not care
about upper and lower case and are written in lower case; values and the names of sections do care. Write
the settings that hold to /app/effective.ini: sections sorted by name (capitals first), each as `[name]`, the
keys in it sorted, as `key = value`, one empty line between sections, and no section that has no key left.
""",
    files={
        "conf/defaults.ini": """\
; what holds unless someone says otherwise
[server]
Port = 8000
host = 127.0.0.1   ; loopback only
workers=2

[cache]
size = 64
policy = LRU

[debug]
trace = off
""",
        "conf/site.d/20-size.ini": "[cache]\nSIZE = 256\n[server]\nworkers = 8\n",
        "conf/site.d/10-names.ini": """\
# names
[server]
name = shop;1
workers = 4
[mail]
from = Shop <shop@example.org>
""",
        "conf/local.ini": """\
[debug]
trace =
[Server]
extra = yes
[server]
PORT = 8443 ; tls
[cache]
policy =
""",
    },
    solve="""
python3 - <<'EOF'
import glob, re
found = {}
for path in ["conf/defaults.ini", *sorted(glob.glob("conf/site.d/*")), "conf/local.ini"]:
    section = None
    for line in open(path):
        line = re.sub(r"\\s;.*", "", line).strip()
        if not line or line[0] in ";#":
            continue
        if line[0] == "[":
            section = found.setdefault(line[1:-1], {})
            continue
        key, _, value = line.partition("=")
        section.pop(key.strip().lower(), None)
        if value.strip():
            section[key.strip().lower()] = value.strip()
parts = []
for name in sorted(found):
    if found[name]:
        parts.append("\\n".join([f"[{name}]", *(f"{k} = {v}" for k, v in sorted(found[name].items()))]))
open("effective.ini", "w").write("\\n\\n".join(parts) + "\\n")
EOF
""",
    test="""
check the settings are those that hold -- same effective.ini "$(cat <<'EOF'
[Server]
extra = yes

[cache]
size = 256

[mail]
from = Shop <shop@example.org>

[server]
host = 127.0.0.1
name = shop;1
port = 8443
workers = 8
EOF
)"
""",
)


def _people() -> MiniTask:
    rng = Random("one-line-a-person")
    latest: dict[str, tuple[str, str, str]] = {}
    lines = []
    for _ in range(120):
        person = rng.randrange(45)
        email = f"p{person:02}@example.org"
        day = f"2025-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}"
        digits = str(rng.randrange(10**7, 10**8))
        phone = rng.choice(
            (
                f"+49 {digits[:3]} {digits[3:]}",
                f"0{digits[:3]}/{digits[3:]}",
                f"0049-{digits[:3]}-{digits[3:]}",
            )
        )
        typed = rng.choice((email, email.upper(), f" {email} ", email.replace("p", "P", 1)))
        while email in latest and latest[email][0] == day:
            day = f"2025-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}"
        lines.append(f"{day}|{typed}|{phone}")
        if email not in latest or latest[email][0] < day:
            latest[email] = (day, email, f"+49{digits}")
    table = "\n".join(
        f"{email} {phone}" for _, email, phone in sorted(latest.values(), key=lambda row: row[1])
    )
    return MiniTask(
        name="one-line-a-person",
        category="text",
        difficulty="medium",
        instruction="""
/app/contacts.txt has lines of a date, an e-mail address and a telephone number, separated by |. The same
person can be there many times: addresses that differ only in upper and lower case or in blanks around them
are the same. Keep the newest line of each person. Write /app/people.txt, sorted by address: the address in
lower case, a space, and the number in the form +49 followed by digits only. A number that begins with 0049
or with a single 0 is one of +49 too.
""",
        files={"contacts.txt": "\n".join(lines) + "\n"},
        solve="""
awk -F'|' '{
  gsub(/ /, "", $2); email = tolower($2)
  phone = $3; gsub(/[^0-9+]/, "", phone); sub(/^0049/, "+49", phone); sub(/^0/, "+49", phone)
  if (!(email in day) || $1 > day[email]) { day[email] = $1; number[email] = phone }
} END { for (email in day) print email, number[email] }' contacts.txt | LC_ALL=C sort > people.txt
""",
        test=f"""
check every person is there once with the newest number -- same people.txt "$(cat <<'EOF'
{table}
EOF
)"
""",
    )


TASKS = (_join(), _SETTINGS, _people())
