"""Where the steps of a topology are drawn."""

from service.observability.status_page import graph_of
from tests.support.service import topology


def test_every_step_is_a_layer_behind_the_last_that_leads_to_it():
    graph = graph_of(topology())
    names = {each.id: each.name for each in graph.nodes}
    assert {each.name: each.layer for each in graph.nodes} == {
        "orders": 0, "returns": 0, "parse": 1, "parse_returns": 1, "check": 2, "all": 3, "late": 3,
    }  # fmt: skip
    assert {(names[e.source], names[e.target], e.stream) for e in graph.edges} == {
        ("orders", "parse", ""),
        ("returns", "parse_returns", ""),
        ("parse", "check", ""),
        ("parse_returns", "check", ""),
        ("check", "all", ""),
        ("check", "late", "late"),
    }


def test_no_two_steps_have_one_place():
    places = [(each.layer, each.row) for each in graph_of(topology()).nodes]
    assert len(set(places)) == len(places)
    assert [each.kind for each in graph_of(topology()).nodes][:2] == ["source", "source"]
