"""A server as a child process with a state directory: started, awaited, stopped."""

import atexit
import contextlib
import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from pathlib import Path

import structlog

from service.embedded.errors import NotRunning, PortTaken, ServerFailed, StateDirInUse
from service.embedded.owner import PidFile
from service.embedded.ports import HOST, free_ports, is_free

_log = structlog.get_logger()

_POLL_SECONDS = 0.05
_PORT_ATTEMPTS = 5
_PORT_PATIENCE_SECONDS = 5.0
_TAIL_BYTES = 4000
_TAIL_LINES = 15
_BIND_ERRORS = ("Address already in use", "BindException")

LOGGING = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p %m (%c)%n%ex{12}
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""


class EmbeddedServer(ABC):
    """One server on 127.0.0.1 that keeps its data and its ports in `state_dir`.

    The thread that opens it owns it. It is a session of its own, so a Ctrl-C in the
    terminal reaches this process only, which can then drain before it stops its servers.
    What the server prints goes to `<state_dir>/<name>.log`.
    """

    name: str
    port_count = 1
    start_seconds = 60.0
    stop_seconds = 20.0

    def __init__(self, state_dir: Path, port: int | None = None) -> None:
        self._state_dir = state_dir.absolute()
        self._port = port
        self._ports: tuple[int, ...] = ()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._log_start = 0

    @abstractmethod
    def _prepare(self) -> None:
        """Write the configuration for `self._ports`, and format the storage if it is new."""

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the command line; it must name a file below the state directory."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether this very server answers a request."""

    @property
    def state_dir(self) -> Path:
        """Where everything of this server lies, as an absolute path."""
        return self._state_dir

    @property
    def log_path(self) -> Path:
        """What the server prints."""
        return self._state_dir / f"{self.name}.log"

    @property
    def port(self) -> int:
        """The port for clients; known once the server has been opened."""
        if not self._ports:
            raise NotRunning(self.name)
        return self._ports[0]

    @property
    def address(self) -> str:
        """`127.0.0.1:port`; known once the server has been opened."""
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The server's process id. Raises NotRunning."""
        return self._running().pid

    @property
    def running(self) -> bool:
        """Whether the process lives (a frozen one does)."""
        return self._process is not None and self._process.poll() is None

    def open(self) -> None:
        """Start the server and return when it answers; does nothing if it runs already.

        Data and ports of an earlier run in the same directory are kept. A server left
        behind there by a process that has died is stopped first. Raises StateDirInUse,
        PortTaken, ServerFailed, JavaMissing, and a JarError where jars must be fetched.
        """
        if self.running:
            return
        started = time.monotonic()
        self._state_dir.mkdir(parents=True, exist_ok=True)
        self._stop_stale()
        (self._state_dir / "tmp").mkdir(exist_ok=True)
        (self._state_dir / "log4j2.properties").write_text(LOGGING, encoding="utf-8")
        kept = self._kept_ports()
        if kept:
            self._start_on(kept)
        else:
            self._start_on_free_ports()
        _log.info(
            "embedded_server_started",
            server=self.name,
            address=self.address,
            pid=self.pid,
            seconds=round(time.monotonic() - started, 3),
        )

    def close(self) -> None:
        """Stop the server: SIGTERM, and SIGKILL after `stop_seconds`. Idempotent."""
        process, self._process = self._process, None
        atexit.unregister(self._at_exit)
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            process.send_signal(signal.SIGCONT)  # a frozen one could not end
            try:
                process.wait(self.stop_seconds)
            except subprocess.TimeoutExpired:
                _log.warning("embedded_server_killed", server=self.name, pid=process.pid)
                process.kill()
        process.wait()
        self._pid_file.clear()

    def kill(self) -> None:
        """End the server at once with SIGKILL, as a crash would; `open` starts it again."""
        process = self._running()
        process.kill()
        process.wait()

    def freeze(self) -> None:
        """Stop the server's clock (SIGSTOP): connections stay, nothing answers from now on."""
        process = self._running()
        process.send_signal(signal.SIGSTOP)
        # Not reaped: if it has ended instead, `close` is to find that.
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def thaw(self) -> None:
        """Let a frozen server go on (SIGCONT)."""
        self._running().send_signal(signal.SIGCONT)

    def jvm_flags(self) -> tuple[str, ...]:
        """Return the flags that keep a JVM's own files inside the state directory."""
        return (
            f"-Djava.io.tmpdir={self._state_dir / 'tmp'}",
            f"-Dlog4j2.configurationFile={self._state_dir / 'log4j2.properties'}",
            "-Djava.net.preferIPv4Stack=true",
        )

    @property
    def _pid_file(self) -> PidFile:
        return PidFile(self._state_dir / f"{self.name}.pid")

    @property
    def _port_path(self) -> Path:
        return self._state_dir / f"{self.name}.ports"

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise NotRunning(self.name)
        return self._process

    def _stop_stale(self) -> None:
        pid = self._pid_file.running()
        if pid is None:
            return
        owner = self._pid_file.living_owner()
        if owner is not None:
            raise StateDirInUse(self.name, self._state_dir, pid, owner)
        _log.warning("embedded_server_left_behind_stopped", server=self.name, pid=pid)
        self._pid_file.stop(pid, self.stop_seconds)

    def _kept_ports(self) -> tuple[int, ...]:
        try:
            text = self._port_path.read_text(encoding="ascii")
        except FileNotFoundError:
            return ()
        ports = tuple(int(word) for word in text.split())
        if self._port is not None and ports[:1] != (self._port,):
            return ()  # the caller asks for another port than last time
        return ports

    def _start_on_free_ports(self) -> None:
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            if self._port is None:
                ports = free_ports(self.port_count)
            else:
                ports = (self._port, *free_ports(self.port_count - 1))
            try:
                self._start_on(ports)
            except PortTaken:
                if attempt == _PORT_ATTEMPTS or self._port is not None:
                    raise
            else:
                return

    def _start_on(self, ports: tuple[int, ...]) -> None:
        deadline = time.monotonic() + _PORT_PATIENCE_SECONDS
        while not all(is_free(port) for port in ports):
            if time.monotonic() > deadline:
                raise PortTaken(self.name, ports, self.log_path)
            time.sleep(_POLL_SECONDS)
        self._ports = ports
        self._port_path.write_text(" ".join(map(str, ports)) + "\n", encoding="ascii")
        self._prepare()
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                self._command(),
                cwd=self._state_dir,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._owner = os.getpid()
        self._pid_file.write(self._process.pid)
        atexit.register(self._at_exit)  # an orderly exit without close() leaves no server behind
        try:
            self._await_answer()
        except BaseException:
            self._discard()
            raise

    def _await_answer(self) -> None:
        deadline = time.monotonic() + self.start_seconds
        while True:
            status = self._running_status()
            if status is not None:
                tail = self._tail()
                if any(each in tail for each in _BIND_ERRORS):
                    raise PortTaken(self.name, self._ports, self.log_path)
                what = f"ended with status {status} while starting"
                raise ServerFailed(self.name, what, self.log_path, tail)
            if self._answers() and self._running_status() is None:
                return
            if time.monotonic() > deadline:
                what = f"did not answer within {self.start_seconds:g} s"
                raise ServerFailed(self.name, what, self.log_path, self._tail())
            time.sleep(_POLL_SECONDS)

    def _running_status(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def _at_exit(self) -> None:
        if self._owner == os.getpid():  # not in a forked copy of this process
            self.close()

    def _discard(self) -> None:
        if self.running:
            self.kill()
        self.close()

    def _tail(self) -> str:
        with contextlib.suppress(OSError), self.log_path.open("rb") as log:
            end = log.seek(0, 2)
            log.seek(max(self._log_start, end - _TAIL_BYTES))
            text = log.read().decode("utf-8", "replace")
            return "\n".join(text.splitlines()[-_TAIL_LINES:])
        return ""
