"""Orders as JSON of exactly 111 bytes, and the users who gave them.

Values are drawn from a generator with a fixed seed, so every run has the same ones. They
come from a table of a few thousand middles, for publishing must be quick.
"""

import random

ORDER_BYTES = 111
USERS = 100_000
FIRST_USER = 100_000
LEAST_TOTAL = 50.0  # smaller orders are filtered: about one in twelve
FIRST_ORDER = 1_000_000
_MOST_ORDERS = 9_000_000
_TAILS = 4_096
_COUNTRIES = ("AT", "BR", "DE", "ES", "FR", "GB", "IN", "JP", "PL", "US")


class Orders:
    """Makes the value of each order."""

    def __init__(self, seed: int = 1) -> None:
        rng = random.Random(seed)  # noqa: S311 - no secrets
        self._users = [rng.randrange(FIRST_USER, FIRST_USER + USERS) for _ in range(1 << 16)]
        self._tails = [
            (
                (
                    f'"sku":"sku-{rng.randrange(100_000):05}","qty":{rng.randint(1, 9)},'
                    f'"price":{rng.randrange(10, 100)}.{rng.randrange(10)}{rng.randint(1, 9)},"ts":'
                ),
                1_763_712_000_000 + rng.randrange(10**8),
                f',"country":"{rng.choice(_COUNTRIES)}"}}',
            )
            for _ in range(_TAILS)
        ]

    def value(self, number: int, made_at: int | None = None) -> bytes:
        """Order `number`, below nine million; made at a millisecond since 1970, or at its own."""
        if number >= _MOST_ORDERS:
            raise ValueError(f"order {number}: numbers below {_MOST_ORDERS} have seven digits")
        user = self._users[(number * 40_503) & 0xFFFF]
        middle, at, end = self._tails[number % _TAILS]
        if made_at is not None:
            at = made_at
        return f'{{"order_id":{FIRST_ORDER + number},"user_id":{user},{middle}{at}{end}'.encode()


def users() -> dict[int, str]:
    return {
        number: f"segment-{number % 100:02}" for number in range(FIRST_USER, FIRST_USER + USERS)
    }
