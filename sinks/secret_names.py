"""Which properties hold secrets, by their names: Kafka's, Spark's and our own."""

_WORDS = (
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "credential",
    "jaas",
    "private_key",
    "access_key",
    "account_key",
    "api_key",
    "ssl_key",
    "oauthbearer_config",
    "auth_data",
)


def is_secret(name: str) -> bool:
    """Whether a field or property of this name holds a secret."""
    plain = name.lower().replace(".", "_").replace("-", "_")
    return any(word in plain for word in _WORDS)
