"""Page views of a web site from Kafka into an Iceberg table, exactly once.

headrace run examples.iceberg.pipeline:topology --config service.toml
"""

from datetime import UTC, datetime
from typing import TypedDict
from urllib.parse import parse_qs, urlsplit

import msgspec

from headrace import SKIP, Reject, Skip, Topology, bolt
from headrace.payloads import json
from headrace.sinks import IcebergSink, KafkaDeadLetters

ROBOTS = ("bot", "crawler", "spider")


class Request(msgspec.Struct, frozen=True, gc=False):
    """One request as the web server tells of it."""

    at: datetime
    visitor: str
    url: str
    agent: str
    status: int


class PageView(TypedDict):
    """A row of the table `page_views`."""

    at: datetime
    visitor: str
    page: str
    campaign: str | None


@bolt
def people(request: Request) -> Request | Skip:
    """Leave out robots, and what was answered with an error."""
    agent = request.agent.lower()
    if request.status >= 400 or any(word in agent for word in ROBOTS):  # noqa: PLR2004 - HTTP's
        return SKIP
    return request


@bolt
def viewed(request: Request) -> PageView:
    """Which page, and which campaign led to it."""
    try:
        parts = urlsplit(request.url)
    except ValueError as error:
        raise Reject(f"no address of a page: {error}") from error
    at = request.at.astimezone(UTC)
    campaigns = parse_qs(parts.query).get("campaign", [None])
    return {
        "at": at,
        "visitor": request.visitor,
        "page": parts.path or "/",
        "campaign": campaigns[0],
    }


topology = Topology("page-views", reliability="exactly-once")
views = topology.source("requests").then(json(Request)).then(people).then(viewed)
views.into(IcebergSink("page_views", schema=PageView, partition_by=["day(at)"]), name="page_views")
topology.dead_letters.into(KafkaDeadLetters("requests.dead"))
