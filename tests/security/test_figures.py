"""The numbers of attempts on the security page are those of the tests."""

from collections import Counter

import count_attempts
import pytest


def test_the_page_claims_no_more_attempts_than_there_are(request: pytest.FixtureRequest) -> None:
    config = request.config
    complete = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.option.keyword
    cases = Counter(item.nodeid.partition("::")[0] for item in request.session.items) if complete else None
    counted, shown = count_attempts.count_attempts(cases), count_attempts.read_page()
    assert shown.keys() == counted.keys()
    for area, number in shown.items():
        assert 0 < number <= counted[area] <= 2 * number, f"{area}: run python docs/count_attempts.py"
