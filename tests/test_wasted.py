"""Groups without signal are counted as they happen; what a finished run says of them."""

import pandas as pd
import pytest

from lib import wasted


def test_a_group_is_constant_by_its_rewards():
    assert wasted.constant_share([0.3] * 8 + [0.3] * 7 + [0.4], 8) == 0.5
    assert wasted.constant_share([1.0, 1.0, 0.2, 0.2], 2) == 1.0
    assert wasted.constant_share([1.0, 0.2], 2) == 0.0


@pytest.mark.parametrize(
    ("rule", "ends"), [(0, "5.0 s."), (4, "5.0 s."), (3, "ended at step 3, after 3 steps in a row without any signal.")]
)
def test_a_run_says_what_it_wasted_and_whether_the_rule_ended_it(rule, ends):
    steps = pd.DataFrame({"step": [1, 2, 3], "wasted_s": [1.0, 2.0, 2.0], "dead_steps": [1, 2, 3]})
    assert wasted.sentence(steps, rule).endswith(ends)


def test_an_older_record_says_that_it_was_not_measured():
    assert "not measured" in wasted.sentence(pd.DataFrame({"step": [1]}), 3)
