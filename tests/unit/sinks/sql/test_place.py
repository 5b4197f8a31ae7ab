import pytest

from sinks.spark.sql.place import place_of
from topology.errors import InvalidTopology

URL = "jdbc:postgresql://db:5432/shop"


def test_user_and_password_are_taken_out_of_the_url() -> None:
    place = place_of(f"{URL}?user=a%40b&ssl=true&password=top+secret%26&sslmode=require")
    assert place.url == f"{URL}?ssl=true&sslmode=require"
    assert (place.user, place.password) == ("a@b", "top secret&")
    assert place.shown == URL


def test_what_is_given_counts_more_than_the_url_and_that_more_than_the_environment() -> None:
    environment = {"PGUSER": "env", "PGPASSWORD": "env-secret"}
    place = place_of(f"{URL}?user=url&password=url-secret", "given", "given-secret")
    assert place.with_environment(environment) == place_of(
        f"{URL}?user=url&password=url-secret", "given", "given-secret"
    )
    place = place_of(f"{URL}?user=url&password=url-secret").with_environment(environment)
    assert (place.user, place.password) == ("url", "url-secret")
    place = place_of(URL).with_environment(environment)
    assert (place.user, place.password) == ("env", "env-secret")
    place = place_of(URL).with_environment({})
    assert (place.user, place.password) == (None, None)


def test_a_secret_is_hidden_in_texts_and_never_shown() -> None:
    place = place_of(f"{URL}?password=url-secret&sslpassword=key-secret", password="my-secret")  # noqa: S106
    place = place.with_environment({})
    assert "secret" not in repr(place)
    assert "secret" not in place.shown
    assert place.hide("my-secret url-secret key-secret x") == "*** *** *** x"
    assert place_of(URL).with_environment({"PGPASSWORD": "env-secret"}).hide("env-secret") == "***"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("jdbc:mysql://root:secret@db/shop", "found a URL of 'jdbc:mysql:'; allowed is jdbc:post"),
        ("postgresql://root:secret@db/shop", "found a URL of 'postgresql:'"),
        ("secret", "found something else"),
        ("jdbc:postgresql://root:secret@db/shop", "found '@' in the address"),
        (f"{URL}?password=secret\n", "found a control character"),
    ],
)
def test_another_database_is_refused_and_the_url_is_not_shown(url: str, says: str) -> None:
    with pytest.raises(InvalidTopology, match=says) as caught:
        place_of(url)
    assert "secret" not in str(caught.value)
