"""The values that travel between the bolts, and the row that ends in the table.

Between bolts they are `msgspec.Struct`s: a typed decode into one is strict and takes half
the time of `orjson.loads` into a dict. What enters the table is a `TypedDict`, whose hints
are the table's schema: `X | None` is a nullable column, everything else is not.
"""

from datetime import datetime
from typing import Literal, NamedTuple, TypedDict

import msgspec


class Flight(msgspec.Struct, frozen=True, gc=False):
    """One flight as it comes from Kafka; fields of the JSON not named here are passed over.

    Times of day are local, as hours * 100 + minutes (`517` is 5:17, `2400` midnight at the
    day's end). `year`, `month`, `day` are those of the scheduled departure. `dep_time` is
    None if the flight was cancelled, `arr_time` if it has no arrival (cancelled or diverted),
    `arr_delay` also if it arrived after a diversion.
    """

    year: int
    month: int
    day: int
    dep_time: int | None
    sched_dep_time: int
    dep_delay: int | None
    arr_time: int | None
    sched_arr_time: int
    arr_delay: int | None
    carrier: str
    flight: int
    tailnum: str | None
    origin: str
    dest: str
    distance: int
    time_hour: str


class Airport(NamedTuple):
    """An airport's name and place, in degrees."""

    name: str
    lat: float
    lon: float


class Plane(NamedTuple):
    """What is registered under a tail number."""

    manufacturer: str
    model: str
    seats: int
    year: int | None


class Weather(NamedTuple):
    """One hour at one airport: degrees Fahrenheit, miles per hour, miles, inches."""

    temp: float | None
    wind_speed: float | None
    visib: float | None
    precip: float | None


class EnrichedFlight(msgspec.Struct, frozen=True, gc=False):
    """A flight with what the reference tables say about it; None is what they do not know."""

    flight: Flight
    carrier_name: str
    hour: datetime
    origin: Airport | None
    dest: Airport | None
    distance_ok: bool | None
    plane: Plane | None
    weather: Weather | None


class NamedFlight(TypedDict):
    """A flight with its carrier's name: the light table, one row per flight that departed.

    `time_hour` is the scheduled hour in UTC, as the source writes it.
    """

    time_hour: str
    carrier: str
    carrier_name: str
    flight: int
    tailnum: str | None
    origin: str
    dest: str
    dep_delay: int | None
    arr_delay: int | None
    distance: int


class FlightEvent(TypedDict):
    """A row of the table `flight_events`: one departure or one arrival.

    `airport` is where the event took place, `other_airport` the flight's other end.
    Minutes count from local midnight there. `distance_ok` says whether the distance fits
    the airports' coordinates. The weather is that of the scheduled hour at the origin.
    """

    kind: Literal["departure", "arrival"]
    hour: datetime
    year: int
    month: int
    day: int
    carrier: str
    carrier_name: str
    flight: int
    tailnum: str | None
    airport: str
    airport_name: str | None
    other_airport: str
    scheduled_minutes: int
    actual_minutes: int
    delay_minutes: int | None
    distance_miles: int
    distance_ok: bool | None
    plane_manufacturer: str | None
    plane_model: str | None
    plane_seats: int | None
    plane_year: int | None
    temp: float | None
    wind_speed: float | None
    visib: float | None
    precip: float | None
