"""Any Harbor environment as a `SandboxInterface`."""

from termrl.sandbox.interface import HarborSandbox, SandboxInterface, SandboxResult, shorten
from termrl.sandbox.local import LocalEnvironment


async def test_commands_and_files_through_the_small_protocol(sandbox: LocalEnvironment) -> None:
    small = HarborSandbox(sandbox)
    assert isinstance(small, SandboxInterface)
    await small.send_heartbeat()
    assert await small.run_command("pwd; exit 4", workdir="/tmp") == SandboxResult("/tmp\n", "", 4)
    assert await small.write_file("/app/run", "#!/bin/sh\necho é\n", executable=True) == SandboxResult(
        "", "", 0
    )
    assert (await small.run_command("/app/run")).stdout == "é\n"
    assert (await small.read_file("/app/run", max_bytes=9)).stdout == "#!/bin/sh"


async def test_output_beyond_the_limit_keeps_head_and_tail_and_says_what_was_cut(sandbox) -> None:
    result = await HarborSandbox(sandbox).run_command("seq 1000; seq 2000 >&2", max_output_bytes=20)
    assert result.stdout == "1\n2\n3\n4\n5\n\n[... 3873 of 3893 bytes cut ...]\n\n999\n1000\n"
    assert result.stderr.startswith("1\n2\n3\n4\n5\n")
    assert result.stderr.endswith("1999\n2000\n")
    assert shorten("éé", 3) == "é\n[... 1 of 4 bytes cut ...]\n"
    assert shorten("short", 5) == "short"


async def test_what_fails_inside_is_a_result_not_an_exception(sandbox: LocalEnvironment) -> None:
    small = HarborSandbox(sandbox)
    missing = await small.read_file("/app/missing")
    assert missing.exit_code == 1
    assert "/app/missing" in missing.stderr
    assert (await small.write_file("/proc/version", "x")).exit_code == 1
    late = await small.run_command("echo early; sleep 60", timeout=1)
    assert (late.exit_code, late.stdout) == (124, "early\n")
    await small.cleanup()
    await small.cleanup()
