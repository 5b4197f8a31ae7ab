"""The steps a flight passes: parse, keep those that flew, enrich, split into events."""

import math
from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache

import msgspec

from examples.flights import tables
from examples.flights.rows import (
    Airport,
    EnrichedFlight,
    Flight,
    FlightEvent,
    NamedFlight,
    Plane,
    Weather,
)
from headrace import SKIP, Bolt, Record, Reject, Skip, bolt

EARTH_RADIUS_MILES = 3958.8
DISTANCE_SLACK_MILES = 1.0  # the distances are whole miles
DISTANCE_SLACK = 0.005  # the Earth is no sphere: at most about 0.5 % from pole to equator

_decode = msgspec.json.Decoder(Flight).decode
_parse_hour = lru_cache(maxsize=10_000)(datetime.fromisoformat)  # a year has 8,760 hours


@bolt
def parse(record: Record) -> Flight:
    """Read a flight; what is none (no JSON, a field missing or of another type) is rejected."""
    if record.value is None:
        raise Reject("not a flight: the record has no value")
    try:
        return _decode(record.value)
    except msgspec.DecodeError as error:
        raise Reject(f"not a flight: {error}") from error


@bolt
def keep_flown(flight: Flight) -> Flight | Skip:
    """Drop cancelled flights: those without a departure time."""
    return SKIP if flight.dep_time is None else flight


class Enrich(Bolt[Flight, EnrichedFlight]):
    """Adds the carrier's name, both airports, the plane, and the weather of that hour.

    A flight of an unknown carrier is rejected. The other tables have real holes, so what
    is not in them is None.
    """

    def open(self) -> None:
        """Load the tables: about 30,000 rows, 0.2 s."""
        self._airlines = tables.airlines()
        self._airports = tables.airports()
        self._planes = tables.planes()
        self._weather = tables.weather()
        self._distance_fits = lru_cache(maxsize=10_000)(distance_fits)  # there are 226 routes

    def process(self, flight: Flight, /) -> EnrichedFlight:
        """Look everything up."""
        origin = self._airports.get(flight.origin)
        dest = self._airports.get(flight.dest)
        return EnrichedFlight(
            flight,
            _name_of(flight.carrier, self._airlines),
            _hour_of(flight),
            origin,
            dest,
            self._distance_fits(flight.distance, origin, dest),
            None if flight.tailnum is None else self._planes.get(flight.tailnum),
            self._weather.get((flight.origin, flight.time_hour)),
        )


@bolt
def events(enriched: EnrichedFlight) -> Iterator[FlightEvent]:
    """Split a flight into its departure and, if it has an arrival time, its arrival.

    A diverted flight that never got to its destination has a departure only. One that got
    there late has an arrival without a delay, because the source gives none.
    """
    flight = enriched.flight
    plane = enriched.plane or _NO_PLANE
    weather = enriched.weather or _NO_WEATHER
    departure: FlightEvent = {
        "kind": "departure",
        "hour": enriched.hour,
        "year": flight.year,
        "month": flight.month,
        "day": flight.day,
        "carrier": flight.carrier,
        "carrier_name": enriched.carrier_name,
        "flight": flight.flight,
        "tailnum": flight.tailnum,
        "airport": flight.origin,
        "airport_name": enriched.origin.name if enriched.origin else None,
        "other_airport": flight.dest,
        "scheduled_minutes": minutes(flight.sched_dep_time),
        "actual_minutes": minutes(flight.dep_time or 0),  # cancelled flights do not come here
        "delay_minutes": flight.dep_delay,
        "distance_miles": flight.distance,
        "distance_ok": enriched.distance_ok,
        "plane_manufacturer": plane[0],
        "plane_model": plane[1],
        "plane_seats": plane[2],
        "plane_year": plane[3],
        "temp": weather.temp,
        "wind_speed": weather.wind_speed,
        "visib": weather.visib,
        "precip": weather.precip,
    }
    yield departure
    if flight.arr_time is not None:
        arrival = departure.copy()
        arrival["kind"] = "arrival"
        arrival["airport"] = flight.dest
        arrival["airport_name"] = enriched.dest.name if enriched.dest else None
        arrival["other_airport"] = flight.origin
        arrival["scheduled_minutes"] = minutes(flight.sched_arr_time)
        arrival["actual_minutes"] = minutes(flight.arr_time)
        arrival["delay_minutes"] = flight.arr_delay
        yield arrival


class NameCarrier(Bolt[Flight, NamedFlight]):
    """The light alternative to `Enrich` and `events`: one look-up, one row per flight."""

    def open(self) -> None:
        """Load the carriers' names."""
        self._airlines = tables.airlines()

    def process(self, flight: Flight, /) -> NamedFlight:
        """Add the carrier's name. A flight of an unknown carrier is rejected."""
        return {
            "time_hour": flight.time_hour,
            "carrier": flight.carrier,
            "carrier_name": _name_of(flight.carrier, self._airlines),
            "flight": flight.flight,
            "tailnum": flight.tailnum,
            "origin": flight.origin,
            "dest": flight.dest,
            "dep_delay": flight.dep_delay,
            "arr_delay": flight.arr_delay,
            "distance": flight.distance,
        }


def minutes(time_of_day: int) -> int:
    """Minutes since midnight of a time written as hours * 100 + minutes."""
    return time_of_day // 100 * 60 + time_of_day % 100


def distance_fits(miles: int, origin: Airport | None, dest: Airport | None) -> bool | None:
    """Whether a distance is the great circle's within a mile and half a percent.

    None if an airport is unknown. The haversine formula, on a sphere.
    """
    if origin is None or dest is None:
        return None
    lat_1, lat_2 = math.radians(origin.lat), math.radians(dest.lat)
    half_lat = (lat_2 - lat_1) / 2
    half_lon = math.radians(dest.lon - origin.lon) / 2
    chord = math.sin(half_lat) ** 2 + math.cos(lat_1) * math.cos(lat_2) * math.sin(half_lon) ** 2
    great_circle = 2 * EARTH_RADIUS_MILES * math.asin(math.sqrt(chord))
    return abs(great_circle - miles) <= DISTANCE_SLACK_MILES + DISTANCE_SLACK * miles


_NO_PLANE: Plane | tuple[None, None, None, None] = (None, None, None, None)
_NO_WEATHER = Weather(None, None, None, None)


def _name_of(carrier: str, airlines: dict[str, str]) -> str:
    try:
        return airlines[carrier]
    except KeyError:
        raise Reject(f"carrier {carrier!r} is not in the table of airlines") from None


def _hour_of(flight: Flight) -> datetime:
    try:
        return _parse_hour(flight.time_hour)
    except ValueError:
        raise Reject(f"time_hour {flight.time_hour!r} is not an ISO 8601 time") from None
