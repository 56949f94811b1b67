"""Loading policies are given names or typed keys, also before a key knows its name."""

from xdb_sdk import ObjectProcess, Persistence, PersistenceLoadingPolicy, Registry, data_attribute, rpc
from xdb_sdk.protocol import ReadRequest


class KeyedProcess(ObjectProcess):
    count = data_attribute(int)
    other = data_attribute(int)

    @rpc(data_attribute_loading_policy=PersistenceLoadingPolicy.partial([other]).locking([count]))
    def by_keys(self, persistence: Persistence) -> None: ...

    @rpc(data_attribute_loading_policy=PersistenceLoadingPolicy.partial(["other"]).locking(["count"]))
    def by_names(self, persistence: Persistence) -> None: ...


def read_of(rpc_name: str) -> ReadRequest:
    registry = Registry()
    registry.add_process(KeyedProcess)
    return registry.process_of(KeyedProcess).rpcs[rpc_name].wire_read


def test_keys_in_the_body_of_their_class_mean_the_same_as_names() -> None:
    assert read_of("by_keys") == read_of("by_names")
    assert read_of("by_keys").lock_local_attributes == ("count",)
