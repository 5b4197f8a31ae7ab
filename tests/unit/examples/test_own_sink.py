import subprocess
import sys
from pathlib import Path

from examples.own_sink.pipeline import stored
from headrace.testing import topology_test
from tests.support.patience import seconds

ROOT = Path(__file__).resolve().parents[3]


def test_orders_are_stored_and_what_is_none_is_a_dead_letter(tmp_path: Path) -> None:
    topology = stored(tmp_path / "orders.db")
    topology.validate()
    with topology_test(topology) as kit:
        kit.send(b'{"number": 1, "customer": "c"}', b"{broken", b'{"customer": "c"}')
        assert kit.rows == [{"number": 1, "customer": "c"}]
        assert len(kit.rejected) == 2


def test_the_example_runs_by_itself_and_stores_each_order_once() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.own_sink"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=seconds(60),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "refused: orders[0] under epoch 1 has been taken over under epoch 2",
        "orders [1, 2]",
        "lines [('orders[0]', 2, 2)]",
    ]
