"""The numbers of attempts on the security page are those of the tests."""

import count_attempts


def test_the_page_claims_no_more_attempts_than_there_are() -> None:
    counted, shown = count_attempts.count_attempts(), count_attempts.read_page()
    assert shown.keys() == counted.keys()
    for area, number in shown.items():
        assert 0 < number <= counted[area] <= 2 * number, f"{area}: run python docs/count_attempts.py"
