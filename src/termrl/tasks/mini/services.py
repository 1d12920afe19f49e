"""Tasks about a small service: one that does not come up, and one that has to be kept up."""

from termrl.tasks.mini.task import MiniTask

_ASK = """
ask() {
  python3 -c 'import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=5).read().decode())' "$1"
}
"""

_FIX = MiniTask(
    name="service-that-will-not-start",
    category="services",
    difficulty="medium",
    instruction="""
/app/service has a small web service in Python, its settings and its README. It does not start, and once it
does it does not do what its README says. Put it right and leave it running, in the background, on the port
that the README names. It has to be running still when you are done. Do not change the README or data.json.
""",
    files={
        "service/README": """\
The stock service. Start it with: python3 server.py settings.json
It listens on 127.0.0.1:8093.
  GET /health        answers: ok
  GET /stock/NAME    answers the number of pieces of NAME as in data.json, or 404 for a name that isn't there
  GET /total         answers the sum over all names
""",
        "service/settings.json": '{\n  "port": 8039,\n  "data": "stock.json",\n}\n',
        "service/data.json": '{"bolt": 120, "nut": 80, "washer": 7, "Bolt": 1}\n',
        "service/server.py": """\
import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

settings = json.load(open(sys.argv[1]))
stock = json.load(open(settings["data"]))


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/health":
            self.answer(200, "ok")
        elif self.path.startswith("/stock/"):
            name = self.path.removeprefix("/stock/").lower()
            self.answer(200, stock[name])
        elif self.path == "/total":
            self.answer(200, max(stock.values()))
        else:
            self.answer(404, "no such page")

    def answer(self, code, value):
        body = str(value).encode()
        self.send_response(code)
        self.send_header("Content-Length", len(body))
        self.end_headers()
        self.wfile.write(body)


HTTPServer(("127.0.0.1", settings["port"]), Handler).serve_forever()
""",
    },
    solve="""
cd service
echo '{"port": 8093, "data": "data.json"}' > settings.json
sed -i 's/\\.lower()$//; s/max(stock/sum(stock/' server.py
sed -i 's/self.answer(200, stock\\[name\\])/self.answer(200 if name in stock else 404, stock.get(name))/' *.py
setsid python3 server.py settings.json > /tmp/service.log 2>&1 < /dev/null &
for _ in $(seq 50); do (exec 3<> /dev/tcp/127.0.0.1/8093) 2>/dev/null && break; sleep 0.1; done
""",
    test=f"""
{_ASK}
at=http://127.0.0.1:8093
check it is up -- test "$(ask $at/health)" = ok
check it knows bolts -- test "$(ask $at/stock/bolt)" = 120
check it tells Bolt from bolt -- test "$(ask $at/stock/Bolt)" = 1
check it adds up -- test "$(ask $at/total)" = 208
missing() {{ ask $at/stock/rivet 2>&1 | grep -q 'HTTP Error 404'; }}
check what is not there is a 404 -- missing
check the data was not changed -- same service/data.json '{{"bolt": 120, "nut": 80, "washer": 7, "Bolt": 1}}'
""",
)

_KEEP_UP = MiniTask(
    name="keep-it-up",
    category="services",
    difficulty="hard",
    instruction="""
`/app/flaky.sh` serves: while it runs it writes the time to /app/pulse every half second. It dies now and
then, and nobody starts it again. Write /app/keep.sh, which keeps it up: when flaky.sh ends, for whatever
reason, it is started again within two seconds, and there is never more than one of it. keep.sh notes each
start of flaky.sh as one line in /app/starts.log. When keep.sh gets a TERM signal it ends flaky.sh and then
itself. Start keep.sh in the background, write its process id to /app/keep.pid, and leave it running.
""",
    files={
        "flaky.sh": """\
#!/bin/bash
cd /app
while true; do date +%s.%N > pulse; sleep 0.5; done
""",
    },
    setup="chmod +x flaky.sh",
    solve="""
cat > keep.sh <<'EOF'
#!/bin/bash
cd /app
trap 'kill "$child" 2>/dev/null; exit 0' TERM
while true; do
  echo "start $(date)" >> starts.log
  bash /app/flaky.sh &
  child=$!
  wait "$child"
  sleep 0.3
done
EOF
chmod +x keep.sh
setsid bash /app/keep.sh > /dev/null 2>&1 < /dev/null &
echo $! > keep.pid
sleep 1
""",
    test="""
flaky() {
  for directory in /proc/[0-9]*; do
    tr '\\0' ' ' < "$directory/cmdline" 2>/dev/null | grep -Eq '(^|bash )(\\./|/app/)flaky\\.sh $' &&
      echo "${directory#/proc/}"
  done
}
beats() { local a b; a=$(cat pulse); sleep 1.5; b=$(cat pulse); [[ $a != "$b" ]]; }
check flaky.sh runs once -- test "$(flaky | wc -l)" = 1
check it beats -- beats
starts=$(wc -l < starts.log)
old=$(flaky)
kill -9 $old
sleep 2.5
check there is a new one after it was killed -- eval '[[ $(flaky | wc -l) == 1 && $(flaky) != "$old" ]]'
check it beats again -- beats
check its start was noted -- test "$(wc -l < starts.log)" = $((starts + 1))
kill -TERM "$(cat keep.pid)"
sleep 2
check keep.sh ends when asked to -- eval '! kill -0 "$(cat keep.pid)" 2>/dev/null'
check and flaky.sh with it -- test -z "$(flaky)"
""",
)

TASKS = (_FIX, _KEEP_UP)
