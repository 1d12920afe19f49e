"""Tasks about logs: counting over rotated files, following a request, adding up times."""

import json
from collections import Counter
from random import Random

from termrl.tasks.mini.task import MiniTask

_PATHS = ("/", "/cart", "/checkout", "/login", "/search", "/api/items", "/api/orders", "/static/app.js")


def _errors_by_hour() -> MiniTask:
    rng = Random("errors-by-hour")
    files: dict[str, list[str]] = {"access.log": [], "access.log.1": [], "access.log.2": []}
    errors: Counter[str] = Counter()
    for day, name in ((17, "access.log.2"), (18, "access.log.1"), (19, "access.log")):
        for hour in range(24):
            rate = 0.3 if (day, hour) == (18, 13) else rng.uniform(0.02, 0.15)
            for _ in range(rng.randint(18, 30)):
                status = (
                    rng.choice((500, 502, 503)) if rng.random() < rate else rng.choice((200, 200, 304, 404))
                )
                stamp = f"{day:02}/Mar/2025:{hour:02}:{rng.randrange(60):02}:{rng.randrange(60):02} +0000"
                address = f"10.{rng.randrange(4)}.{rng.randrange(256)}.{rng.randrange(256)}"
                path = rng.choice(_PATHS)
                # A path or a size may look like a status code; only the third field from the end is one.
                size = rng.choice((500, 502, 503, rng.randrange(100, 9000)))
                files[name].append(f'{address} - - [{stamp}] "GET {path}?code=500 HTTP/1.1" {status} {size}')
                if status >= 500:
                    errors[f"2025-03-{day:02}T{hour:02}"] += 1
    worst, count = errors.most_common(1)[0]
    return MiniTask(
        name="errors-by-hour",
        category="logs",
        difficulty="medium",
        instruction="""
The web server's access logs of three days are in /app/logs; the older two are rotated, and the oldest is
compressed. Find the hour in which the most requests were answered with a server error (a status of 500 or
more). Write it and the number of those requests to /app/answer.txt, as one line like this:

2025-03-01T09 17
""",
        files={f"logs/{name}": "\n".join(lines) + "\n" for name, lines in files.items()},
        setup="gzip -n logs/access.log.2",
        solve="""
{ zcat logs/access.log.2.gz; cat logs/access.log.1 logs/access.log; } |
  awk '$(NF-1) >= 500 { split(substr($4, 2), t, "[/:]"); n["2025-03-" t[1] "T" t[4]]++ }
       END { for (h in n) if (n[h] > best) { best = n[h]; hour = h } print hour, best }' > answer.txt
""",
        test=f"check the hour and its count are right -- same answer.txt '{worst} {count}'",
    )


def _follow_a_request() -> MiniTask:
    rng = Random("follow-a-request")
    services = ("gateway", "orders", "stock", "payments")
    logs: dict[str, list[tuple[float, str]]] = {service: [] for service in services}
    codes = ("E-1040", "E-2207", "E-3115", "E-4471", "E-5002")
    customer, answer = "c-8841", ("", "", "")
    for number in range(160):
        began = 1000 + number * 7 + rng.random() * 3
        request = f"{rng.getrandbits(32):08x}"
        who = customer if number == 97 else f"c-{rng.randrange(1000, 8000)}"
        logs["gateway"].append((began, f"request={request} customer={who} POST /orders"))
        fails_in = rng.choice((*services[1:], "", "", "")) if number != 97 else "stock"
        now = began
        for service in services[1:]:
            now += rng.random()
            # Each service has its own id for the request and says which one it came in with.
            own = f"{rng.getrandbits(24):06x}"
            parent = request
            logs[service].append((now, f"span={own} parent={parent} begin"))
            if service == fails_in:
                code = rng.choice(codes)
                logs[service].append((now + 0.2, f"span={own} error code={code}"))
                later = services[services.index(service) + 1 :]
                for other in later:
                    logs[other].append(
                        (now + 0.4, f"span={rng.getrandbits(24):06x} parent={parent} cancelled")
                    )
                if number == 97:
                    answer = (request, service, code)
                break
            logs[service].append((now + 0.3, f"span={own} done"))
    files = {
        f"logs/{service}.log": "".join(f"{when:010.3f} {text}\n" for when, text in sorted(lines))
        for service, lines in logs.items()
    }
    return MiniTask(
        name="follow-a-request",
        category="logs",
        difficulty="medium",
        instruction=f"""
An order of the customer {customer} failed. /app/logs has the logs of the gateway, which knows the customer
and gives every request an id, and of the services behind it, which note that id as `parent` and use a `span`
of their own from there on. Find out which service failed this request, and with which error code. Write
three lines to /app/answer.txt: the request's id, the service's name, the error code.
""",
        files=files,
        solve=f"""
request=$(grep -oP 'request=\\K\\S+(?= customer={customer} )' logs/gateway.log)
for log in logs/*.log; do
  for span in $(grep -oP "span=\\K\\S+(?= parent=$request )" "$log"); do
    code=$(grep -oP "span=$span error code=\\K\\S+" "$log") || continue
    printf '%s\\n' "$request" "$(basename "$log" .log)" "$code" > answer.txt
  done
done
""",
        test=f"check request, service and code are right -- same answer.txt $'{'\\n'.join(answer)}'",
    )


def _time_by_endpoint() -> MiniTask:
    rng = Random("time-by-endpoint")
    totals: Counter[str] = Counter()
    lines = []
    for number in range(900):
        path = rng.choice(_PATHS)
        weight = 40 if path == "/search" else 25 if path == "/api/orders" else 8
        micros = rng.randrange(weight * 100, weight * 1000)
        row: dict[str, object] = {"n": number, "path": path, "status": rng.choice((200, 200, 200, 500))}
        # Two writers, two units: the older one counts milliseconds under another name.
        if rng.random() < 0.4:
            micros -= micros % 1000
            row["elapsed_ms"] = micros // 1000
        else:
            row["elapsed_us"] = micros
        if row["status"] == 200:
            totals[path] += micros
        lines.append(json.dumps(row))
        if number % 90 == 0:
            lines.append("-- worker restarted --")
    top = "\\n".join(f"{path} {micros}" for path, micros in totals.most_common(3))
    return MiniTask(
        name="time-by-endpoint",
        category="logs",
        difficulty="medium",
        instruction="""
/app/requests.jsonl has one JSON object a line, and now and then a line that is none. Some objects give the
time a request took in microseconds (`elapsed_us`), some in milliseconds (`elapsed_ms`). Add up the time of
the requests with status 200 for every path. Write the three paths with the largest totals to
/app/answer.txt, the largest first: one line each, the path, a space, the total in microseconds.
""",
        files={"requests.jsonl": "\n".join(lines) + "\n"},
        solve="""
python3 - <<'EOF'
import collections, json
totals = collections.Counter()
for line in open("requests.jsonl"):
    if not line.startswith("{"):
        continue
    row = json.loads(line)
    if row["status"] == 200:
        totals[row["path"]] += row["elapsed_us"] if "elapsed_us" in row else row["elapsed_ms"] * 1000
with open("answer.txt", "w") as out:
    for path, micros in totals.most_common(3):
        print(path, micros, file=out)
EOF
""",
        test=f"check the three paths and their totals are right -- same answer.txt $'{top}'",
    )


TASKS = (_errors_by_hour(), _follow_a_request(), _time_by_endpoint())
