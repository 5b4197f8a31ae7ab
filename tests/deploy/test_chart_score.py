import pytest

from tests.deploy.tools import each_case, run, template, tool, values_of

pytestmark = pytest.mark.deep

# A moving tag is not what a service runs; a CPU limit stalls it where its node has time to spare;
# spreading by topology leaves the scheduler more freedom than anti-affinity.
IGNORED = ("container-image-pull-policy", "statefulset-has-host-podantiaffinity")


@each_case
def test_kube_score_has_nothing_critical_to_say(case):
    ignored = [part for check in IGNORED for part in ("--ignore-test", check)]
    options = ("--ignore-container-cpu-limit", "--exit-one-on-warning", *ignored)
    done = run(tool("kube-score"), "score", *options, "-", given=template("-f", values_of(case)))
    assert done.returncode == 0, done.stdout


def test_kube_score_would_have_something_to_say():
    made = template("-f", values_of("configmap"))
    spoilt = made.replace("readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false")
    done = run(tool("kube-score"), "score", "-", given=spoilt)
    assert done.returncode == 1
    assert "a container with a writable root filesystem" in done.stdout
