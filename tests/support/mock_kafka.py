"""The cluster that librdkafka mocks for its own tests: it gives the answers that it is told to."""

import ctypes
from pathlib import Path
from types import TracebackType
from typing import Self

import confluent_kafka

_PRODUCER = 0
_HANDLES = ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new")


def _library() -> ctypes.CDLL:
    folder = Path(confluent_kafka.__file__).parent.with_name("confluent_kafka.libs")
    library = ctypes.CDLL(str(next(folder.glob("librdkafka-*"))))
    for name in _HANDLES:
        getattr(library, name).restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    return library


class MockKafka:
    """Brokers on ports of their own, in this process."""

    def __init__(self, brokers: int = 2) -> None:
        self._brokers = brokers
        self._library = _library()

    def __enter__(self) -> Self:
        library = self._library
        conf = ctypes.c_void_p(library.rd_kafka_conf_new())
        library.rd_kafka_conf_set(conf, b"log_level", b"2", None, 0)  # it has no brokers itself
        self._client = ctypes.c_void_p(library.rd_kafka_new(_PRODUCER, conf, None, 0))
        self._cluster = ctypes.c_void_p(
            library.rd_kafka_mock_cluster_new(self._client, self._brokers)
        )
        self.address: str = library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._client)

    def create_topic(self, name: str, partitions: int) -> None:
        self._library.rd_kafka_mock_topic_create(
            self._cluster, name.encode(), partitions, self._brokers
        )

    def answer_for(self, topic: str, code: int) -> None:
        """Have questions for a topic's metadata answered with an error; 0: with the topic."""
        self._library.rd_kafka_mock_topic_set_error(self._cluster, topic.encode(), code)
