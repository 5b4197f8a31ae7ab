import pytest

from tests.deploy.tools import (
    CI,
    SNAPSHOTS,
    TOOLS,
    each_case,
    manifests,
    run,
    template,
    tool,
    values_of,
)

pytestmark = pytest.mark.deep

SCHEMAS = f"{TOOLS}/schemas/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"


@each_case
def test_the_newer_helm_makes_the_same(case):
    made = template("-f", values_of(case), helm=tool("helm"))
    assert made == (SNAPSHOTS / f"{case}.yaml").read_text(encoding="utf-8")


@each_case
def test_manifests_of_operators_fit_their_schemas(case):
    made = template("-f", values_of(case))
    options = ("-strict", "-schema-location", SCHEMAS, "-summary")
    done = run(tool("kubeconform"), *options, given=made)
    assert done.returncode == 0, done.stdout
    assert f"Valid: {len(manifests(made))}, Invalid: 0, Errors: 0, Skipped: 0" in done.stdout


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("podMetricsEndpoints:", "podMetricEndpoints:"), ('threshold: "100000"', "threshold: 100000")],
)
def test_wrong_field_of_an_operator_is_found(right, wrong):
    made = template("-f", CI / "secured-values.yaml")
    assert right in made
    spoilt = made.replace(right, wrong)
    done = run(tool("kubeconform"), "-strict", "-schema-location", SCHEMAS, given=spoilt)
    assert done.returncode == 1
    assert "is invalid" in done.stdout
