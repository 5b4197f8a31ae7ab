"""A wall clock that jumps under a process: clock_shift.c, which a C compiler builds."""

import subprocess
import sysconfig
from pathlib import Path

_SOURCE = Path(__file__).with_name("clock_shift.c")
_FLAGS = ("-shared", "-fPIC", "-O1", "-Wall", "-Werror")


class WallClock:
    """The clock of the processes that are started with `environment`; right at first.

    Python, librdkafka and the C library ask it. The monotonic clock is the machine's own.
    """

    def __init__(self, folder: Path) -> None:
        """Build it. Raises CalledProcessError or FileNotFoundError without a C compiler."""
        self._shift = folder / "clock-shift"
        self._library = folder / "clock-shift.so"
        self.shift(0)
        compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
        command = [compiler, *_FLAGS, "-o", str(self._library), str(_SOURCE), "-ldl", "-lpthread"]
        subprocess.run(command, check=True)

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "CLOCK_SHIFT": str(self._shift)}

    def shift(self, seconds: int) -> None:
        """Let it be so many seconds ahead of the right time, at once; below 0 behind."""
        with self._shift.open("r+b" if self._shift.exists() else "wb") as file:
            file.write(seconds.to_bytes(8, "little", signed=True))
