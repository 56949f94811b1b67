"""Bodies that come late, in pieces, too long or not at all."""

import pytest

from server_stub.api.app import ServiceApi
from tests.contract.service_api.fake_operations import FakeOperations
from tests.contract.service_api.raw_asgi import Conversation
from tests.contract.service_api.requests import path_of
from xdb_sdk.protocol import SERVICE_BATCH_PATH, ErrorBody, ErrorSubType


async def test_body_may_come_in_pieces(api: ServiceApi, operations: FakeOperations) -> None:
    async with Conversation(api, path_of("describe")) as talk:
        talk.send(b'{"proc', more=True)
        talk.send(b'essId": "p-1', more=True)
        talk.send(b'"}')

        assert await talk.status() == 200
    assert len(operations.asked) == 1


@pytest.mark.parametrize("path", [path_of("start"), SERVICE_BATCH_PATH])
async def test_body_that_announces_too_much_is_refused_before_it_is_sent(api: ServiceApi, path: str) -> None:
    async with Conversation(api, path, {"content-length": "99999999999999999999"}) as talk:
        assert await talk.status() == 400
        error = ErrorBody.model_validate_json(await talk.rest())

    assert error.error_sub_type is ErrorSubType.PAYLOAD_TOO_LARGE


@pytest.mark.parametrize("path", [path_of("start"), SERVICE_BATCH_PATH])
@pytest.mark.parametrize("length", ["-5", "abc", ""])
async def test_nonsense_in_content_length_does_no_harm(api: ServiceApi, path: str, length: str) -> None:
    async with Conversation(api, path, {"content-length": length}) as talk:
        talk.send(b"")

        assert await talk.status() in (200, 400)


async def test_body_without_end_is_read_no_further_than_the_limit(api: ServiceApi) -> None:
    async with Conversation(api, path_of("start"), {"content-length": "10"}) as talk:
        for _ in range(100):
            talk.send(b" " * 1_000, more=True)

        assert await talk.status() == 400
        error = ErrorBody.model_validate_json(await talk.rest())

    assert error.error_sub_type is ErrorSubType.PAYLOAD_TOO_LARGE


async def test_body_that_stops_coming_is_refused(api: ServiceApi) -> None:
    async with Conversation(api, path_of("start")) as talk:
        talk.send(b"{", more=True)

        assert await talk.status() == 400
        error = ErrorBody.model_validate_json(await talk.rest())

    assert "body_timeout" in error.details


async def test_call_that_is_cut_off_is_not_carried_out(api: ServiceApi, operations: FakeOperations) -> None:
    async with Conversation(api, path_of("describe")) as talk:
        talk.send(b'{"processId": "p-1"}', more=True)
        talk.hang_up()

    assert operations.asked == []
    assert not talk.has_answered
