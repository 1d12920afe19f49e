"""`termrl setup`: keys are asked for, tested against a server on loopback, and written for the owner only."""

import stat
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path

import pytest
from dotenv import dotenv_values

from termrl.cli import main
from termrl.settings.keys import SERVICES

GOOD = "good'key\\with=signs"


class Gate(BaseHTTPRequestHandler):
    """Lets in who brings the good key, however the service takes it."""

    def do_GET(self) -> None:
        import base64

        brought = [self.headers.get(name, "") for name in ("Authorization", "x-api-key", "X-API-Key")]
        brought += [base64.b64decode(text[6:]).decode() for text in brought if text.startswith("Basic ")]
        self.send_response(200 if any(text.endswith(GOOD) for text in brought) else 401)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def gate() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Gate) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(autouse=True)
def no_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for service in SERVICES.values():
        for name in (*service.variables, service.base_variable):
            if name:
                monkeypatch.delenv(name, raising=False)


def type_in(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr("sys.stdin", StringIO("".join(f"{line}\n" for line in lines)))


OVER_HTTP = [name for name, service in SERVICES.items() if service.path]


@pytest.mark.parametrize("name", OVER_HTTP)
def test_a_key_that_works_is_written_and_one_that_is_refused_is_not(
    name: str, gate: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    service = SERVICES[name]
    monkeypatch.setenv(service.base_variable, gate)
    type_in(monkeypatch, "bad-key")
    assert main(["setup", name]) == 1
    out = capsys.readouterr().out
    assert "refuses it (status 401); not written." in out
    assert "bad-key" not in out
    assert not (tmp_path / ".env").exists()
    type_in(monkeypatch, GOOD)
    assert main(["setup", name]) == 0
    out = capsys.readouterr().out
    assert f"{name}: {gate} accepts it; written to .env." in out
    assert GOOD not in out
    assert dotenv_values(".env") == {service.variables[0]: GOOD}


def test_what_else_is_in_the_file_stays_and_only_its_owner_may_read_it(
    gate: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text("# mine\nOTHER=1\nexport OPENAI_API_KEY=old\n")
    (tmp_path / ".env").chmod(0o644)
    monkeypatch.setenv("OPENAI_BASE_URL", gate)
    type_in(monkeypatch, GOOD)
    assert main(["setup", "openai"]) == 0
    assert (tmp_path / ".env").read_text().startswith("# mine\nOTHER=1\n")
    assert dotenv_values(".env") == {"OTHER": "1", "OPENAI_API_KEY": GOOD}
    assert stat.S_IMODE((tmp_path / ".env").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [".env"]


def test_a_key_that_is_there_is_kept_with_enter(
    gate: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", gate)
    monkeypatch.setenv("OPENAI_API_KEY", GOOD)
    type_in(monkeypatch, "openai", "")
    assert main(["setup"]) == 0
    assert "Which services will you use" in capsys.readouterr().out
    assert dotenv_values(".env") == {"OPENAI_API_KEY": GOOD}


def test_a_service_that_cannot_be_asked_is_not_taken_for_a_yes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9")
    type_in(monkeypatch, "a-key")
    assert main(["setup", "openai"]) == 0
    assert "openai: could not be tested: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "lines", "sentence"),
    [
        (["setup", "opnai"], [], "There is no service 'opnai'; there are tinker, openai"),
        (["setup", "openai"], [], "The input ended before every key was given."),
        (["setup", "openai"], [""], "OPENAI_API_KEY was left empty: openai does not work without it."),
        (["setup", "openai", "file=/dev/null/x"], [GOOD], "/dev/null/x could not be written"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str],
    lines: list[str],
    sentence: str,
    gate: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", gate)
    type_in(monkeypatch, *lines)
    assert main(arguments) == 2
    assert sentence in capsys.readouterr().err


def test_a_tinker_key_is_tested_by_the_sdk(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_in(monkeypatch, "no-such-form")
    assert main(["setup", "tinker"]) == 1
    assert "a Tinker key begins with tml-; not written." in capsys.readouterr().out
