"""Somebody who follows the documentation: gives its commands in a folder, reads what they print."""

import os
import shlex
import signal
import urllib.error
import urllib.request
from pathlib import Path

from service.devservers.process import free_ports
from tests.acceptance.harness import Launch, Process
from tests.support.patience import seconds, until

SECONDS = seconds(120.0)


class Given:
    def __init__(self, command: str, process: Process, stdout: Path, stderr: Path) -> None:
        self.command, self.process = command, process
        self._stdout, self._stderr = stdout, stderr

    @property
    def said(self) -> str:
        return self._stdout.read_text(encoding="utf-8")

    @property
    def errors(self) -> str:
        return self._stderr.read_text(encoding="utf-8")

    def succeeds(self) -> None:
        code = self.process.wait(SECONDS)
        assert code == 0, f"{self.command}\n{self.said}\n{self.errors}"

    def end(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        self.succeeds()


class Follower:
    """Gives commands as they stand on a page; each is a process of its own, launched as is said."""

    def __init__(self, folder: Path, launch: Launch) -> None:
        self.folder, self._launch = folder, launch
        self.ports: list[int] = []
        self.commands: list[str] = []  # that were given

    def start(self, command: str, **environment: str) -> Given:
        """Give a command; do not wait for its end."""
        words = shlex.split(command.replace("/etc/orders/service.toml", "service.toml"))
        while "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            environment[name] = value
        self.commands.append(command)
        output = self.folder / f"given-{len(self.commands)}"
        stdout, stderr = output.with_suffix(".out"), output.with_suffix(".err")
        with stdout.open("wb") as out, stderr.open("wb") as err:
            variables = {**os.environ, "PYTHONSAFEPATH": "1", "COLUMNS": "160", **environment}
            process = self._launch(words, cwd=self.folder, env=variables, stdout=out, stderr=err)
        return Given(command, process, stdout, stderr)

    def give(self, command: str, **environment: str) -> str:
        """Give a command, which must end well and say something."""
        given = self.start(command, **environment)
        given.succeeds()
        assert given.said.strip(), command
        return given.said

    def serve(self, command: str, **environment: str) -> Given:
        """Give a command that runs the service, and wait until it is ready."""
        [port] = free_ports(1)
        self.ports.append(port)
        serving = self.start(command, HEADRACE_HTTP__PORT=str(port), **environment)
        until(
            f"{command} is ready",
            lambda: _is_ready(port) or serving.process.poll() is not None,
            SECONDS,
            lambda: serving.errors,
        )
        assert serving.process.poll() is None, serving.errors
        return serving


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=seconds(5)):
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except OSError:
        return False
