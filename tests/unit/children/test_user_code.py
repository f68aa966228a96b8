import urllib.error
import urllib.request

import pytest

from ppojob_trainer.children.user_code import raised


def test_the_place_has_the_last_frame_of_the_user_behind_those_of_libraries() -> None:
    def asks() -> None:
        urllib.request.urlopen("none://a")

    with pytest.raises(urllib.error.URLError) as failed:
        asks()
    _, where = raised(failed.value, "")
    first, *_, last = where.split(" < ")
    assert "urllib/request.py" in first
    assert last.startswith(__file__)
    assert last.endswith(" asks")
