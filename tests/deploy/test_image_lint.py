"""The Dockerfile, without building it."""

from deploy.chart import ROOT
from tests.deploy.tools import packaged, run


def test_hadolint_finds_nothing_in_the_dockerfile():
    done = run(packaged("hadolint"), ROOT / "Dockerfile")
    assert done.returncode == 0, done.stdout


def test_hadolint_would_find_something():
    spoilt = "FROM debian\nRUN sudo apt-get install x\n"
    assert run(packaged("hadolint"), "-", given=spoilt).returncode == 1
