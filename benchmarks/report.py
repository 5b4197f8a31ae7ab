"""The report: a page of Markdown with a part per suite, each written anew when it is measured."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.conditions import Conditions
from benchmarks.result import Result, Table

_BLOCK = r"(<!-- suite: {suite} -->\n).*?(<!-- end -->)"
_LEAST_SHARE = 1.0  # per cent of the time: what is below is left out


def written_into(
    page: str, result: Result, conditions: Conditions, profiles: Mapping[str, Any]
) -> str:
    """The page with the suite's part replaced. Raises KeyError if it has no place for it.

    The place is between `<!-- suite: NAME -->` and `<!-- end -->`. `profiles` are those of
    `sampling.Sampler`, by variant.
    """
    block = re.compile(_BLOCK.format(suite=re.escape(result.suite)), re.DOTALL)
    if not block.search(page):
        raise KeyError(f"the report has no line '<!-- suite: {result.suite} -->'")
    text = "\n".join(_part(result, conditions, profiles))
    return block.sub(lambda match: f"{match[1]}\n{text}\n{match[2]}", page)


def _part(result: Result, conditions: Conditions, profiles: Mapping[str, Any]) -> Iterable[str]:
    yield str(conditions)
    yield ""
    if result.notes:
        yield result.notes
        yield ""
    for table in [*result.all_tables, *_profile_tables(profiles)]:
        yield from table.markdown()
        yield ""


def _profile_tables(profiles: Mapping[str, Any]) -> Iterable[Table]:
    for variant, profile in profiles.items():
        rows = [
            (f"`{name}`", f"{own:.0f}", f"{with_callees:.0f}")
            for name, own, with_callees in profile["functions"]
            if own >= _LEAST_SHARE
        ]
        title = f"Where the owner thread is in `{variant}`, % of {profile['samples']:,} samples"
        yield Table(title, ("function", "itself", "with callees"), rows)
    if profiles:
        yield _threads(profiles)


def _threads(profiles: Mapping[str, Any]) -> Table:
    """Which threads use the processor: a row per thread, a column per variant."""
    shares = {variant: dict(profile["threads"]) for variant, profile in profiles.items()}
    names = {name: None for each in shares.values() for name in each}
    rows = [
        (f"`{name}`", *(f"{each.get(name, 0):.0f}" for each in shares.values()))
        for name in names
        if max(each.get(name, 0) for each in shares.values()) >= _LEAST_SHARE
    ]
    return Table("CPU by thread, %", ("thread", *(f"`{name}`" for name in shares)), rows)
