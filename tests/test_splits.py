"""Parts drawn as a share of the rows."""

import numpy as np
import pytest

from datamodules.errors import DataMismatch
from datamodules.splits import by_files, by_names


@pytest.mark.parametrize("share", [-0.2, 0.0, 0.5, 2.0])
def test_a_share_that_is_none_is_refused_where_one_is_needed(share: float) -> None:
    assert by_files({"train": 50, "validation": 5, "test": 10}, share=share, seed=0)["train"].size == 50
    with pytest.raises(DataMismatch, match=f"share is {share}: take a number above 0 and below 1/2"):
        by_files({"train": 50, "test": 10}, share=share, seed=0)
    with pytest.raises(DataMismatch, match=f"share is {share}"):
        by_names([str(name) for name in range(50)], {}, share=share, seed=0)


def test_a_part_without_a_file_is_a_share_of_the_training_rows() -> None:
    rows = by_files({"train": 50, "test": 10}, share=0.2, seed=0)
    assert rows["test"].tolist() == list(range(50, 60))
    assert (len(rows["validation"]), len(rows["train"])) == (10, 40)
    assert sorted([*rows["validation"], *rows["train"]]) == list(range(50))
    one = by_files({"train": 50}, share=0.2, seed=0)
    assert [len(index) for index in one.values()] == [30, 10, 10]
    assert not np.array_equal(one["test"], by_files({"train": 50}, share=0.2, seed=1)["test"])
