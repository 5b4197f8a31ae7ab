"""A development server as a child process with a state directory, and its ports on 127.0.0.1."""

import atexit
import contextlib
import fcntl
import itertools
import os
import random
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import IO

import structlog

from service.devservers.java import DevServerError

_log = structlog.get_logger()

HOST = "127.0.0.1"

_PORTS = range(10_240, 32_768)  # below those that Linux hands out to outgoing connections
_PORT_DRAWS = 200
_PORT_ATTEMPTS = 5
_PORT_PATIENCE_SECONDS = 5.0
_BIND_ERRORS = ("Address already in use", "BindException")
_CONNECT_SECONDS = 1.0
_POLL_SECONDS = 0.05
_TAIL_BYTES = 4000
_TAIL_LINES = 15

_LOGGING = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p %m (%c)%n%ex{12}
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""


class NotRunning(DevServerError):
    """The server is not running; open it first."""


class PortInUse(DevServerError):
    """A port that a server must use belongs to another process."""


class StateDirInUse(DevServerError):
    """Another living process runs a server in this state directory."""


class ServerFailed(DevServerError):
    """A server ended, or did not answer, while it was being started."""

    def __init__(self, server: str, what: str, log: Path, tail: str) -> None:
        super().__init__(f"{server} {what}; the end of {log}:\n{tail or '(nothing)'}")
        self.tail = tail


class EmbeddedServer(ABC):
    """One server on 127.0.0.1 that keeps its data and its ports in `state_dir`.

    The thread that opens it owns it. The server is a session of its own, so a Ctrl-C in the
    terminal reaches this process only, which can drain before it stops its servers. Its output
    goes to `<state_dir>/<name>.log`.
    """

    name: str
    usual = 0
    """The port on which clients look for such a server."""
    port_count = 1
    start_seconds = 60.0
    stop_seconds = 20.0

    def __init__(
        self, state_dir: Path, port: int | None = None, *, usual_port: bool = False
    ) -> None:
        self.state_dir = state_dir.absolute()
        self._port = port
        self._usual = self.usual if usual_port else None  # used if it is free
        self._ports: tuple[int, ...] = ()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner_lock: IO[bytes] | None = None
        self._owner_pid = 0
        self._log_start = 0

    @abstractmethod
    def _prepare(self) -> None:
        """Write the configuration for `self._ports`, and format the storage if it is new."""

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the command line."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether this very server answers a request."""

    @property
    def log_path(self) -> Path:
        return self._file("log")

    @property
    def port(self) -> int:
        """The port for clients. Raises NotRunning before the first `open`."""
        if not self._ports:
            raise NotRunning(f"{self.name} is not running; open it first")
        return self._ports[0]

    @property
    def address(self) -> str:
        """`127.0.0.1:port`. Raises NotRunning before the first `open`."""
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The server's process id. Raises NotRunning."""
        return self._live_process().pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def open(self) -> None:
        """Start the server and return when it answers; do nothing if it runs already.

        Data and ports of an earlier run in the same directory are kept. A server left behind
        there by a process that has died is stopped first. Raises StateDirInUse, PortInUse,
        ServerFailed, JavaMissing, and a JarError where jars must be fetched.
        """
        if self.running:
            return
        started = time.monotonic()
        try:
            (self.state_dir / "tmp").mkdir(parents=True, exist_ok=True)
            (self.state_dir / "log4j2.properties").write_text(_LOGGING, encoding="utf-8")
            self._take_over()
        except OSError as error:
            raise DevServerError(
                f"{self.name} cannot keep its data in {self.state_dir}: "
                f"{error.strerror or error}. Choose a folder that can be written (--state-dir)."
            ) from error
        try:
            if ports := self._stored_ports():
                self._start_on(ports)
            else:
                self._start_on_free_ports()
        except BaseException:
            with contextlib.suppress(NotRunning):
                self.kill()
            self.close()
            raise
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
        if process is not None:
            if process.poll() is None:
                process.terminate()
                process.send_signal(signal.SIGCONT)  # a frozen one could not end
                try:
                    process.wait(self.stop_seconds)
                except subprocess.TimeoutExpired:
                    _log.warning("embedded_server_killed", server=self.name, pid=process.pid)
                    process.kill()
            process.wait()
            self._file("pid").unlink(missing_ok=True)
        self._let_go()

    def kill(self) -> None:
        """End the server at once with SIGKILL, as a crash would; `open` starts it again."""
        process = self._live_process()
        process.kill()
        process.wait()
        self._let_go()

    def jvm_flags(self) -> tuple[str, ...]:
        """Return the flags that keep a JVM's own files inside the state directory."""
        return (
            f"-Djava.io.tmpdir={self.state_dir / 'tmp'}",
            f"-Dlog4j2.configurationFile={self.state_dir / 'log4j2.properties'}",
            "-Djava.net.preferIPv4Stack=true",
        )

    def _file(self, suffix: str) -> Path:
        return self.state_dir / f"{self.name}.{suffix}"

    def _live_process(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise NotRunning(f"{self.name} is not running; open it first")
        return self._process

    def _take_over(self) -> None:
        """Own the directory, and end a server whose owner has died. Raises StateDirInUse.

        A process that owns the directory has a lock on `.owner`, a server that runs in it one on
        `.pid`: both end with their process, however it ends.
        """
        if self._owner_lock is None:
            lock = self._file("owner").open("ab")
            if not _is_locked_by_us(lock):
                lock.close()
                raise StateDirInUse(
                    f"{self.state_dir} belongs to a running {self.name} of process "
                    f"{self._noted('owner')}. Stop that one, or use another directory."
                )
            self._owner_lock = lock
        self._file("owner").write_text(f"{os.getpid()}\n", encoding="ascii")
        with self._file("pid").open("ab") as lock:
            ends = time.monotonic() + self.stop_seconds
            pid, number = self._noted("pid"), signal.SIGTERM
            if not _is_locked_by_us(lock):
                _log.warning("embedded_server_left_behind_stopped", server=self.name, pid=pid)
            while pid and not _is_locked_by_us(lock):
                if _has_open(pid, self._file("pid")):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
                        os.kill(pid, signal.SIGCONT)  # a frozen one could not end
                elif time.monotonic() > ends:
                    raise StateDirInUse(f"{self.state_dir} belongs to processes that {pid} left")
                if time.monotonic() > ends:
                    number = signal.SIGKILL
                time.sleep(_POLL_SECONDS)

    def _let_go(self) -> None:
        if self._owner_lock is not None:
            fcntl.flock(self._owner_lock, fcntl.LOCK_UN)  # also for copies in forked processes
            self._owner_lock.close()
            self._owner_lock = None

    def _noted(self, suffix: str) -> int:
        words = self._file(suffix).read_text(encoding="ascii").split()
        return int(words[0]) if words and words[0].isdigit() else 0

    def _stored_ports(self) -> tuple[int, ...]:
        try:
            text = self._file("ports").read_text(encoding="ascii")
        except FileNotFoundError:
            return ()
        ports = tuple(int(word) for word in text.split())
        if ports[:1] == (self.usual,):  # others use it, too
            return ports if is_free(self.usual) and self._port is None else ()
        if self._usual is not None and is_free(self._usual):
            return ()
        return ports if ports and self._port in (None, ports[0]) else ()

    def _start_on_free_ports(self) -> None:
        if self._port is not None:
            self._start_on((self._port, *free_ports(self.port_count - 1)))
            return
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            usual = () if self._usual is None or attempt > 1 else (self._usual,)
            first = tuple(filter(is_free, usual))
            try:
                self._start_on((*first, *free_ports(self.port_count - len(first))))
            except PortInUse:
                if attempt == _PORT_ATTEMPTS:
                    raise
            else:
                return

    def _start_on(self, ports: tuple[int, ...]) -> None:
        deadline = time.monotonic() + _PORT_PATIENCE_SECONDS
        while not all(map(is_free, ports)):
            if time.monotonic() > deadline:
                raise self._port_in_use(ports)
            time.sleep(_POLL_SECONDS)
        self._ports = ports
        self._file("ports").write_text(" ".join(map(str, ports)) + "\n", encoding="ascii")
        self._prepare()
        with self.log_path.open("ab") as log, self._file("pid").open("wb") as lock:
            self._log_start = log.tell()
            fcntl.flock(lock, fcntl.LOCK_EX)  # until the last process that inherits it has ended
            self._process = subprocess.Popen(
                self._command(),
                cwd=self.state_dir,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=[lock.fileno()],
            )
            lock.write(f"{self._process.pid}\n".encode())
        self._owner_pid = os.getpid()
        atexit.register(self._at_exit)  # an orderly exit without close() leaves no server behind
        self._await_answer()

    def _await_answer(self) -> None:
        deadline = time.monotonic() + self.start_seconds
        while self.running:
            if self._answers() and self.running:
                return
            if time.monotonic() > deadline:
                what = f"did not answer within {self.start_seconds:g} s"
                raise ServerFailed(self.name, what, self.log_path, self._tail())
            time.sleep(_POLL_SECONDS)
        tail = self._tail()
        if any(each in tail for each in _BIND_ERRORS):
            raise self._port_in_use(self._ports)
        status = self._process and self._process.returncode
        what = f"ended with status {status} while starting"
        raise ServerFailed(self.name, what, self.log_path, tail)

    def _port_in_use(self, ports: tuple[int, ...]) -> PortInUse:
        listed = ", ".join(map(str, ports))
        return PortInUse(
            f"{self.name} needs port(s) {listed} on {HOST}, which are taken; see {self.log_path}"
        )

    def _at_exit(self) -> None:
        if self._owner_pid == os.getpid():  # not in a forked copy of this process
            self.close()

    def _run_once(self, command: list[str], what: str, timeout_seconds: float) -> None:
        """Run a program that prepares the storage. Raises ServerFailed: the server `what`."""
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            done = subprocess.run(
                command,
                cwd=self.state_dir,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=timeout_seconds,
            )
        if done.returncode != 0:
            raise ServerFailed(self.name, what, self.log_path, self._tail())

    def _tail(self) -> str:
        with contextlib.suppress(OSError), self.log_path.open("rb") as log:
            end = log.seek(0, 2)
            log.seek(max(self._log_start, end - _TAIL_BYTES))
            text = log.read().decode("utf-8", "replace")
            return "\n".join(text.splitlines()[-_TAIL_LINES:])
        return ""


def free_ports(count: int) -> tuple[int, ...]:
    """Return different ports that nobody listens on now.

    A port that the system hands out to outgoing connections could be taken by a client while its
    server is down, even by a client that tries to reach that very server and connects to itself.
    """
    draws = random.SystemRandom().sample(_PORTS, _PORT_DRAWS)
    chosen = tuple(itertools.islice(filter(is_free, draws), count))
    if len(chosen) < count:
        raise OSError(f"no {count} free ports found between {_PORTS[0]} and {_PORTS[-1]}")
    return chosen


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As Java's servers do: a port whose last connections linger is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def connects(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=_CONNECT_SECONDS):
            return True
    except OSError:
        return False


def _has_open(pid: int, file: Path) -> bool:
    """Whether a process has a file open, as a server has its lock; True where nobody can tell."""
    if not Path("/proc/self/fd").is_dir():
        return True
    try:
        return any(each.resolve() == file.resolve() for each in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def _is_locked_by_us(file: IO[bytes]) -> bool:
    """Lock a file unless another process has it locked; return whether it is ours."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
