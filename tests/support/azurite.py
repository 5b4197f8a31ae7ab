"""Azurite as a child process: Azure's blobs. `deploy/tools.sh azurite` fetches it."""

import os
from pathlib import Path

from service.devservers.process import HOST, EmbeddedServer, connects
from sinks.storage import Storage

_ACCOUNT, _CONTAINER = "devstoreaccount1", "lake"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
_TOOLS = Path(os.environ.get("HEADRACE_TOOLS") or _CACHE / "headrace/tools")


class EmbeddedAzurite(EmbeddedServer):
    """An account of Azure's in `state_dir`; account and key are those that every Azurite has."""

    name = "azurite"

    def storage(self, folder: str) -> Storage:
        return Storage(
            f"abfss://{_CONTAINER}@{_ACCOUNT}.dfs.core.windows.net/{folder}",
            endpoint=f"http://{self.address}",
            secrets={"account_key": _KEY},
        )

    def _prepare(self) -> None:
        (self.state_dir / "data").mkdir(exist_ok=True)

    def _command(self) -> list[str]:
        return [
            str(_TOOLS / "bin" / "azurite-blob"),
            f"--location={self.state_dir / 'data'}",
            f"--blobHost={HOST}",
            f"--blobPort={self.port}",
            "--silent",
            "--skipApiVersionCheck",
            "--disableTelemetry",
        ]

    def _answers(self) -> bool:
        if not connects(self.port):
            return False
        try:
            self.storage("").filesystem(self.storage("").warehouse)[0].create_dir(_CONTAINER)
        except OSError:
            return False
        return True
