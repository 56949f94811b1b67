"""URLs in the options of a client."""

from typing import Any

import pytest

from xdb_sdk import InvalidArgumentError
from xdb_sdk.client import ClientOptions


def test_urls_of_a_client_are_brought_into_their_normal_form() -> None:
    options = ClientOptions(server_url="http://H:80/", worker_url="http://[::1]:2/w/?tenant=7")

    assert (options.server_url, options.worker_url) == ("http://h", "http://[::1]:2/w?tenant=7")


@pytest.mark.parametrize("setting", ["server_url", "worker_url"])
@pytest.mark.parametrize("url", ["localhost:8801", "http://h:0", 8801, None])
def test_url_that_cannot_be_called_is_refused_by_the_name_of_its_setting(setting: str, url: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{setting} "):
        ClientOptions(**{setting: url})
