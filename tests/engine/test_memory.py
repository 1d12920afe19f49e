import subprocess
import sys

_SCRIPT = """
import ctypes
from pathlib import Path
from termrl.engine.memory import give_back_freed_memory, keep_freed_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
before = resident()
places = [libc.malloc(100 << 20) for _ in range(3)]
for place in places:
    ctypes.memset(place, 1, 100 << 20)
for place in places:
    libc.free(place)
kept = resident() - before
give_back_freed_memory()
print(kept, resident() - before)
"""


def test_freed_memory_is_kept_for_reuse_until_it_is_given_back() -> None:
    ran = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True)
    kept, left = ran.stdout.split()
    assert int(kept) > 290
    assert int(left) < 10
