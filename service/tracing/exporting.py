"""Where spans go: a bounded queue, a thread, and a collector that may be away."""

import logging
import threading
import time
from collections.abc import Callable
from importlib.metadata import version

import numpy as np
import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from service.config import TracingConfig
from service.tracing.traces import MAX_LINKS, Traces

log = structlog.get_logger()

_QUEUE_SPANS = 8_192
_BATCH_SPANS = 512
_DELAY_MS = 1_000
_REQUEST_SECONDS = 5.0
_TELL_SECONDS = 60.0


class Tracing:
    """The traces of a run, and the SDK behind them; `close` waits for a moment at most.

    Spans wait in a queue for a thread of the SDK's. While the collector is away the oldest
    are dropped, and that is logged once a minute.
    """

    def __init__(
        self,
        config: TracingConfig,
        pipeline: str,
        rng: np.random.Generator,
        exporter: SpanExporter | None = None,
        processor: Callable[[SpanExporter], SpanProcessor] | None = None,
    ) -> None:
        """`exporter` and `processor` stand in for those that send to the endpoint."""
        self._config = config
        self._exporter = exporter
        self._processor = processor or _batched
        self._complaints = _Complaints()
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,  # what is not to be sampled gets no span at all
            resource=Resource.create(
                {"service.name": config.service_name, "headrace.pipeline": pipeline}
            ),
            shutdown_on_exit=False,  # it would wait for a collector that is away
            span_limits=SpanLimits(max_links=MAX_LINKS),
        )
        tracer = self._provider.get_tracer("headrace", version("headrace"))
        self.traces = Traces(tracer, config.sample_ratio, rng)

    def open(self) -> None:
        """Start the thread that sends. The collector is not asked; spans begun before are lost."""
        self._complaints.listen()
        exporter = self._exporter or OTLPSpanExporter(
            self._config.endpoint, headers=self._config.pairs(), timeout=_REQUEST_SECONDS
        )
        self._provider.add_span_processor(self._processor(exporter))

    def close(self, timeout_seconds: float) -> None:
        """Send what waits, at most so long; what is left then is dropped."""
        self.traces.close()
        closing = threading.Thread(
            target=self._provider.shutdown, name="tracing-close", daemon=True
        )
        closing.start()
        closing.join(timeout_seconds)
        self._complaints.stop()


def _batched(exporter: SpanExporter) -> SpanProcessor:
    return BatchSpanProcessor(
        exporter,
        max_queue_size=_QUEUE_SPANS,
        schedule_delay_millis=_DELAY_MS,
        max_export_batch_size=_BATCH_SPANS,
    )


class _Complaints(logging.Handler):
    """What the SDK says, one line a minute. Any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.WARNING)
        self._clock = clock
        self._told_at: float | None = None
        self._untold = 0

    def listen(self) -> None:
        """Take the SDK's log over."""
        logger = logging.getLogger("opentelemetry")
        logger.addHandler(self)
        logger.propagate = False

    def stop(self) -> None:
        """Listen no more; what the SDK's threads say from now on goes nowhere."""
        logger = logging.getLogger("opentelemetry")
        logger.removeHandler(self)
        logger.addHandler(logging.NullHandler())

    def emit(self, record: logging.LogRecord) -> None:
        """Tell of it, if a minute is over."""
        now = self._clock()
        if self._told_at is not None and now - self._told_at < _TELL_SECONDS:
            self._untold += 1
            return
        self._told_at, untold = now, self._untold
        self._untold = 0
        log.warning("tracing_trouble", text=record.getMessage(), others=untold)
