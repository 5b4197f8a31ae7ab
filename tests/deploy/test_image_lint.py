import re

from deploy.chart import ROOT
from tests.deploy.tools import packaged, run

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
_STAGE = re.compile(r"^FROM (\S+)(?: AS (\S+))?$(.*?)(?=^FROM |\Z)", re.MULTILINE | re.DOTALL)


def made_from(image: str) -> str:
    """The lines of a stage, of those it stands on, and of those it copies from."""
    stages = {name: (base, lines) for base, name, lines in _STAGE.findall(DOCKERFILE)}
    if image not in stages:
        return ""
    base, lines = stages[image]
    others = [base, *re.findall(r"--from=(\S+)", lines)]
    return "\n".join([lines, *map(made_from, others)])


def test_only_the_default_image_has_spark_and_java():
    last = _STAGE.findall(DOCKERFILE)[-1]
    assert last[:2] == ("headrace", "")
    for part in ("openjdk", "spark.lock", "service.jars.resolver"):
        assert part in made_from("headrace")
        assert part in made_from("flights-spark")
        assert part not in made_from("slim")
        assert part not in made_from("flights")
    assert "run.lock" in made_from("slim")


def test_hadolint_finds_nothing_in_the_dockerfile():
    done = run(packaged("hadolint"), ROOT / "Dockerfile")
    assert done.returncode == 0, done.stdout


def test_hadolint_would_find_something():
    spoilt = "FROM debian\nRUN sudo apt-get install x\n"
    assert run(packaged("hadolint"), "-", given=spoilt).returncode == 1
