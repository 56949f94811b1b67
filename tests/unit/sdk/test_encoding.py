"""What the encoder writes, what it reads back, and what it refuses."""

import gc
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, TypeVar
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_serializer
from typing_extensions import TypedDict

from xdb_sdk import _encoding_types
from xdb_sdk._encoding import DEFAULT_ENCODER, ObjectEncoder
from xdb_sdk._errors import DecodeError, EncodeError, InvalidArgumentError

T = TypeVar("T")
NOON = datetime.fromisoformat("2024-01-01T12:00:00")
MIDNIGHT = datetime.fromisoformat("2024-01-01T00:00:00")
UserId = NewType("UserId", int)


class Color(StrEnum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Plain(Enum):
    ONE = 1
    TWO = 2


class Item(BaseModel):
    name: str = "pen"
    price: float = 1.5


class Order(BaseModel):
    items: list[Item] = []
    note: str | None = None


class Special(Item):
    discount: int = 10


class Hidden(BaseModel):
    secret: int = Field(exclude=True)


class Box(BaseModel, Generic[T]):
    content: T


class Node(BaseModel):
    children: list["Node"] = []


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    name: str


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    name: str


class Twin(BaseModel):
    name: str


class OtherTwin(BaseModel):
    name: str


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]


@dataclass
class Blob:
    content: bytes = b"\xff\x00"
    tags: set[str] = field(default_factory=set)
    extra: Any = None


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 0


class Form(TypedDict):
    email: str
    age: NotRequired[int | None]


class Pair(NamedTuple):
    left: int
    right: bytes = b"\xfe"


ROUND_TRIPS: list[tuple[Any, Any]] = [
    (None, None),
    (type(None), None),
    (bool, False),
    (int, 2**53 + 1),
    (int, -(2**63) - 1),
    (int, 10**400),
    (float, -0.5),
    (str, ""),
    (str, "naïve 'quoted' \\ \" \u2028 \U0001f600"),
    (bytes, b"\xff\xfb\xef\x00"),
    (Decimal, Decimal("1.50")),
    (Decimal, Decimal("1E+400")),
    (UUID, UUID(int=7)),
    (date, date(2024, 2, 29)),
    (time, time(1, 2, 3, 4)),
    (datetime, NOON),
    (datetime, datetime(2024, 1, 1, 12, tzinfo=timezone(timedelta(hours=-3, minutes=-30)))),
    (timedelta, timedelta(days=-1, microseconds=1)),
    (timedelta, timedelta.max),
    (Color, Color.RED),
    (Level, Level.HIGH),
    (Plain, Plain.TWO),
    (Order, Order(items=[Item()], note="")),
    (Box[Point], Box[Point](content=Point(1))),
    (Node, Node(children=[Node(), Node(children=[Node()])])),
    (Blob, Blob(tags={"a"}, extra={"b": [1, None]})),
    (Point, Point(1, 2)),
    (Form, {"email": "a@b"}),
    (Form, {"email": "a@b", "age": None}),
    (Form, {"email": "a@b", "age": 0}),
    (Pair, Pair(1)),
    (Literal["a", 1], 1),
    (Literal[Color.RED], Color.RED),
    (UserId, UserId(4)),
    (int | None, None),
    (int | str, "1"),
    (int | str, 1),
    (bool | int, True),
    (bool | int, 1),
    (date | datetime, MIDNIGHT),
    (date | datetime, date(2024, 1, 1)),
    (Pet, Dog(name="rex")),
    (Cat | Dog, Dog(name="rex")),
    (Annotated[int, Field(ge=0)], 0),
    (set[int], {1, 2}),
    (frozenset[Color], frozenset({Color.RED})),
    (tuple[int, str], (1, "a")),
    (tuple[bytes, ...], (b"\xff",)),
    (Sequence[int], [1]),
    (list[int], []),
    (dict[str, list[set[UUID]]], {"a": [{UUID(int=1)}, set()]}),
    (dict[int, str], {1: "a", -2: "b"}),
    (dict[UUID, int], {UUID(int=1): 1}),
    (dict[Color, int], {Color.BLUE: 1}),
    (dict[Level, int], {Level.LOW: 1}),
    (dict[Plain, int], {Plain.ONE: 1}),
    (dict[Literal[1, 2], int], {2: 1}),
    (dict[date, int], {date(2024, 1, 1): 1}),
    (dict[bool, str], {True: "yes", False: "no"}),
    (dict[Decimal, str], {Decimal("1.50"): "a"}),
    (Any, {"a": [1, 1.5, True, None, "x", {}]}),
    (object, 0),
    (dict[str, Any], {"a": {"b": []}}),
]


@pytest.mark.parametrize(("type_hint", "value"), ROUND_TRIPS, ids=lambda part: str(part)[:40])
def test_value_comes_back_equal_and_of_the_same_type(type_hint: Any, value: Any) -> None:
    data = DEFAULT_ENCODER.encode(value, type_hint, "input")

    back = DEFAULT_ENCODER.decode(data, type_hint, "input")

    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(("type_hint", "value"), ROUND_TRIPS, ids=lambda part: str(part)[:40])
def test_value_comes_back_from_a_column(type_hint: Any, value: Any) -> None:
    data = DEFAULT_ENCODER.encode_column(value, type_hint, "attribute")

    assert DEFAULT_ENCODER.decode_column(data, type_hint, "attribute") == value


def test_naive_datetime_stays_naive() -> None:
    data = DEFAULT_ENCODER.encode(NOON, datetime, "input")

    assert data == "2024-01-01T12:00:00"
    assert DEFAULT_ENCODER.decode(data, datetime, "input").tzinfo is None


def test_none_missing_and_the_empty_values_are_written_differently() -> None:
    values: list[Any] = [None, 0, False, "", [], {}]

    data = [DEFAULT_ENCODER.encode(value, Any, "input") for value in values]

    assert [(type(d), d) for d in data] == [(type(v), v) for v in values]


def test_int_is_accepted_for_a_float() -> None:
    data = DEFAULT_ENCODER.encode(3, float, "input")

    assert data == 3.0


def test_model_given_to_any_is_written_by_its_own_type() -> None:
    data = DEFAULT_ENCODER.encode([Item()], Any, "input")

    assert data == [{"name": "pen", "price": 1.5}]


def test_aliases_are_written_and_both_names_are_read() -> None:
    class Renamed(BaseModel):
        cost: int = Field(alias="price")

    data = DEFAULT_ENCODER.encode(Renamed(price=3), Renamed, "input")

    assert data == {"price": 3}
    assert DEFAULT_ENCODER.decode({"cost": 3}, Renamed, "input") == Renamed(price=3)


def _circle() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


def _endless_node() -> Node:
    node = Node()
    node.children.append(node)
    return node


REFUSED: list[tuple[str, Any, Any, str, str]] = [
    ("bool_for_int", True, int, "", "valid integer, not bool"),
    ("bool_for_float", True, float, "", "valid number, not bool"),
    ("int_for_bool", 1, bool, "", "valid boolean, not int"),
    ("none_for_int", None, int, "", "valid integer, not NoneType"),
    ("none_for_model", None, Order, "", "not NoneType"),
    ("text_for_int", "1", int, "", "valid integer, not str"),
    ("dict_for_model", {"items": []}, Order, "", "instance of Order, not dict"),
    ("list_for_set", [1], set[int], "", "valid set, not list"),
    ("wrong_item", {"a": [1, "x"]}, dict[str, list[int]], "a[1]", "valid integer, not str"),
    ("wrong_dataclass_field", [Point("x")], list[Point], "[0].x", "valid integer, not str"),  # type: ignore[arg-type]  # wrong on purpose
    ("wrong_tuple_field", Pair("x"), Pair, "left", "valid integer, not str"),  # type: ignore[arg-type]  # wrong on purpose
    ("wrong_key", {"x": 1}, dict[int, int], "x", "valid integer, not str"),
    ("unknown_key", {"email": "a", "phone": 1}, Form, "phone", "not permitted"),
    ("missing_key", {}, Form, "email", "required"),
    (
        "changed_inner_model",
        Order(items=[Item(), Item().model_copy(update={"price": "x"})]),
        Order,
        "items[1].price",
        "declared type float",
    ),
    ("changed_model", Item().model_copy(update={"price": "x"}), Item, "price", "declared type float"),
    ("huge_integer", [10**5000], list[int], "[0]", "4000 digits"),
    ("nan", float("nan"), float, "", "NaN cannot be stored; use None or a Decimal"),
    ("infinity", [float("-inf")], list[float], "[0]", "infinite"),
    ("nan_in_model", Order(items=[Item(), Item(price=float("nan"))]), Order, "items[1].price", "NaN"),
    ("nan_in_any", {"a b": float("nan")}, Any, "['a b']", "NaN"),
    ("nan_decimal", Decimal("NaN"), Decimal, "", "finite"),
    ("nul", ["a\0b"], list[str], "[0]", "NUL"),
    ("nul_in_key", {"a\0": 1}, dict[str, int], "['a\\x00']", "NUL"),
    ("surrogate", Item(name="\ud800"), Item, "name", "surrogate"),
    ("surrogate_in_key", {"\ud800": 1}, dict[str, int], "['\ufffd\ufffd\ufffd']", "surrogate"),
    ("object_in_any", {"a": [object()]}, Any, "a[0]", "object is not plain JSON"),
    ("datetime_in_any", Blob(extra=MIDNIGHT), Blob, "extra", "datetime is not plain JSON"),
    ("tuple_in_any", (1, 2), Any, "", "tuple is not plain JSON"),
    ("key_in_any", {"a": {1: "x", "1": "y"}}, Any, "a", "a key is of type int"),
    ("key_in_bare_dict", {1: "x", "1": "y"}, dict, "[1]", "valid string, not int"),
    ("object_in_model", Box[Any](content={"a": object()}), Box[Any], "content.a", "cannot be written as JSON"),
    ("bytes_in_model", Box[bytes](content=b"\xff"), Box[bytes], "content", "base64"),
    ("offset_seconds", datetime(1900, 1, 1, tzinfo=timezone(timedelta(seconds=61))), datetime, "", "convert it to UTC"),
    ("circle", _circle(), Any, "", "contains itself"),
    ("endless_model", _endless_node(), Node, "", "contains itself"),
    ("lost_fields", [Special()], list[Item], "[0]", "Special would be read back as Item"),
    ("unreadable", Hidden(secret=1), Hidden | int, "secret", "could not be read back"),
    ("indistinct_models", OtherTwin(name="a"), Twin | OtherTwin, "", "OtherTwin would be read back as Twin"),
    ("indistinct_scalars", {"a": "1.5"}, dict[str, Decimal | str], "a", "str would be read back as Decimal"),
    ("indistinct_items", {"1.5"}, set[Decimal | str], "", "items would be read back"),
]


@pytest.mark.parametrize(
    ("value", "type_hint", "path", "problem"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_value_is_refused_with_where_path_and_reason(value: Any, type_hint: Any, path: str, problem: str) -> None:
    with pytest.raises(EncodeError) as caught:
        DEFAULT_ENCODER.encode(value, type_hint, "start input")

    assert caught.value.path.startswith(path) if problem == "contains itself" else caught.value.path == path
    assert problem in caught.value.problem
    assert str(caught.value).startswith("start input: ")


@pytest.mark.parametrize("depth", [1, 100, 127])
def test_deep_nesting_comes_back(depth: int) -> None:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]

    assert DEFAULT_ENCODER.decode(DEFAULT_ENCODER.encode(value, Any, "input"), Any, "input") == value


def test_too_deep_a_model_is_refused() -> None:
    node = Node()
    for _ in range(100):
        node = Node(children=[node])

    with pytest.raises(EncodeError, match="128 levels"):
        DEFAULT_ENCODER.encode(node, Node, "input")


def test_refusal_does_not_quote_the_value() -> None:
    with pytest.raises(EncodeError) as caught:
        DEFAULT_ENCODER.encode({"password": "hunter2"}, dict[str, int], "input")

    assert "hunter2" not in str(caught.value)


class TestChangedTypes:
    """Data of an earlier version of a type (case C-027)."""

    def test_added_field_takes_its_default(self) -> None:
        assert DEFAULT_ENCODER.decode({"name": "ink"}, Item, "input") == Item(name="ink")

    def test_removed_field_is_ignored(self) -> None:
        assert DEFAULT_ENCODER.decode({"name": "ink", "colour": 1}, Item, "input") == Item(name="ink")

    def test_removed_field_of_a_typed_dict_is_ignored(self) -> None:
        assert DEFAULT_ENCODER.decode({"email": "a", "phone": 1}, Form, "input") == {"email": "a"}

    def test_removed_field_of_a_dataclass_is_ignored(self) -> None:
        assert DEFAULT_ENCODER.decode({"x": 1, "z": 3}, Point, "input") == Point(1)

    def test_renamed_field_is_read_by_its_alias(self) -> None:
        class Renamed(BaseModel):
            cost: float = Field(alias="price")

        assert DEFAULT_ENCODER.decode({"price": 2}, Renamed, "input").cost == 2

    def test_added_required_field_is_named(self) -> None:
        with pytest.raises(DecodeError) as caught:
            DEFAULT_ENCODER.decode([{}, {"content": 1}], list[Box[int]], "input of state 'pay'")

        assert caught.value.path == "[0].content"
        assert str(caught.value) == "input of state 'pay': at [0].content: Field required"


@pytest.mark.parametrize(
    ("data", "type_hint", "path"),
    [
        (None, int, ""),
        ("x", int, ""),
        ({"items": [{"price": "x"}]}, Order, "items[0].price"),
        ({"x": 1}, dict[int, int], "x"),
        ([1, {}], list[int | str], "[1]"),
        ("\ud800", str, ""),
    ],
    ids=["null", "text_for_int", "field", "key", "union", "surrogate"],
)
def test_wrong_data_is_refused_with_its_path(data: Any, type_hint: Any, path: str) -> None:
    with pytest.raises(DecodeError) as caught:
        DEFAULT_ENCODER.decode(data, type_hint, "result")

    assert caught.value.path == path


COLUMNS: list[tuple[Any, Any, Any]] = [
    (str, "a", "a"),
    (Color, Color.RED, "red"),
    (Level, Level.LOW, 1),
    (Literal["a", "b"], "a", "a"),
    (UserId, UserId(1), 1),
    (int | None, 0, 0),
    (bool, False, False),
    (float, 1.0, 1.0),
    (Decimal, Decimal("1.50"), "1.50"),
    (UUID | None, UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (datetime, datetime(2024, 1, 1, tzinfo=UTC), "2024-01-01T00:00:00Z"),
    (timedelta, timedelta(seconds=1), "PT1S"),
    (Annotated[str, Field(max_length=3)], "abc", "abc"),
    (bytes, b"\xff\xfb\xef", {"$bytes": "//vv"}),
    (bytes | None, b"", {"$bytes": ""}),
    (Item, Item(), {"$json": {"name": "pen", "price": 1.5}}),
    (Item | None, None, None),
    (Point, Point(1), {"$json": {"x": 1, "y": 0}}),
    (list[int], [], {"$json": []}),
    (int | str, 1, {"$json": 1}),
    (Literal["a", 1], "a", {"$json": "a"}),
    (Any, "a", {"$json": "a"}),
    (Any, None, None),
]


@pytest.mark.parametrize(("type_hint", "value", "expected"), COLUMNS, ids=lambda part: str(part)[:40])
def test_column_form_follows_the_declared_type(type_hint: Any, value: Any, expected: Any) -> None:
    data = DEFAULT_ENCODER.encode_column(value, type_hint, "attribute")

    assert data == expected
    assert type(data) is type(expected)


@pytest.mark.parametrize(
    ("data", "type_hint", "expected"),
    [
        (None, int, None),
        (1, bool, True),
        (0, bool, False),
        (True, int, 1),
        ({"$json": 3}, int, 3),
        (3, float, 3.0),
        (1.5, Decimal, Decimal("1.5")),
        ("1.50", Decimal, Decimal("1.50")),
        ("2024-01-01 12:00:00.5", datetime, NOON + timedelta(seconds=0.5)),
        ("2024-01-01 00:00:00", date, date(2024, 1, 1)),
        ("PT1.5S", timedelta, timedelta(seconds=1.5)),
        (1_500_000, timedelta, timedelta(seconds=1.5)),
        (-1, timedelta | None, timedelta(microseconds=-1)),
        ("00000000000000000000000000000001", UUID, UUID(int=1)),
        ({"$bytes": "AAAAAAAAAAAAAAAAAAAAAQ=="}, UUID, UUID(int=1)),
        ({"$bytes": "YWJj"}, str, "abc"),
        ({"$bytes": "//vv"}, bytes, b"\xff\xfb\xef"),
        ('{"name": "ink"}', Item, Item(name="ink")),
        ({"$json": {"name": "ink"}}, Item, Item(name="ink")),
        ({"$bytes": "eyJuYW1lIjogImluayJ9"}, Item, Item(name="ink")),
        ("[1]", list[int] | None, [1]),
        ('"a"', Any, "a"),
        (3, int | str, 3),
        ("12", int, 12),
        (12.0, int | None, 12),
        ("1", Level, Level.LOW),
    ],
    ids=lambda part: str(part)[:40],
)
def test_column_is_read_in_the_form_a_database_gives_it(data: Any, type_hint: Any, expected: Any) -> None:
    value = DEFAULT_ENCODER.decode_column(data, type_hint, "attribute")

    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("data", "type_hint"),
    [
        ("not json", Item),
        ({"$bytes": "/w=="}, Item),
        ({"$bytes": "?"}, Item),
        ({"$bytes": "/w=="}, str),
        ({"$bytes": "?"}, bytes),
        ("text", bytes),
        (2, bool),
        (2**80, timedelta),
        ({"$json": [1]}, int),
    ],
    ids=lambda part: str(part)[:40],
)
def test_unreadable_column_is_refused(data: Any, type_hint: Any) -> None:
    with pytest.raises(DecodeError, match="attribute 'form'"):
        DEFAULT_ENCODER.decode_column(data, type_hint, "attribute 'form'")


class Counter(BaseModel):
    n: int


def test_a_field_of_a_model_is_read_as_the_model_is_configured() -> None:
    assert DEFAULT_ENCODER.decode([{"n": "1"}], list[Counter], "output") == [Counter(n=1)]


@pytest.mark.parametrize("type_hint", [Annotated[int, Field(strict=False)], Annotated[int, Field(ge=0, strict=False)]])
def test_a_type_may_ask_for_lenient_reading(type_hint: Any) -> None:
    assert DEFAULT_ENCODER.decode(["7", True], list[type_hint], "output") == [7, 1]


class Arbitrary:
    pass


class Lax(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    thing: Arbitrary | None = None


class OneWay(BaseModel):
    cost: int = Field(serialization_alias="price")


class PlainKeys(BaseModel):
    counts: dict[Plain, int]


UNSUPPORTED: list[tuple[Any, str]] = [
    (Arbitrary, "Arbitrary cannot be stored"),
    (list[Arbitrary], "Arbitrary"),
    (Lax, "arbitrary class"),
    (Callable[[], int], "a function"),
    (Iterable[int], "declare a list"),
    (type[int], "a class object"),
    (SecretStr, "asterisks"),
    (Literal[Plain.ONE], "StrEnum or IntEnum"),
    (OneWay, "'cost' is written as 'price' but not read by it"),
    (dict[tuple[int, int], int], "list of pairs"),
    (dict[int | str, int], "list of pairs"),
    (dict[int | None, int], "list of pairs"),
    (dict[float, int], "list of pairs"),
    (dict[Literal[1, "1"], int], "list of pairs"),
    (Box[dict[Point, int]], "list of pairs"),
    (PlainKeys, "use an IntEnum"),
    (T, "open type variable"),
    (list[T], "open type variable"),  # type: ignore[valid-type]  # unbound on purpose
    ("int", "is a string"),
    (list["Nowhere"], "not defined"),  # type: ignore[name-defined]  # noqa: F821  # undefined on purpose
]


@pytest.mark.parametrize(("type_hint", "problem"), UNSUPPORTED, ids=lambda part: str(part)[:40])
def test_type_that_cannot_be_stored_is_refused_at_definition(type_hint: Any, problem: str) -> None:
    with pytest.raises(InvalidArgumentError, match=problem) as caught:
        DEFAULT_ENCODER.check_type_hint(type_hint, "queue 'orders' of Shop")

    assert str(caught.value).startswith("queue 'orders' of Shop: ")


def test_type_that_cannot_be_stored_is_refused_by_every_method() -> None:
    with pytest.raises(EncodeError):
        DEFAULT_ENCODER.encode_column(len, Callable[[], int], "input")
    with pytest.raises(DecodeError):
        DEFAULT_ENCODER.decode(1, Callable[[], int], "input")
    with pytest.raises(DecodeError):
        DEFAULT_ENCODER.decode_column(1, Callable[[], int], "input")


@pytest.mark.parametrize("type_hint", [hint for hint, _ in ROUND_TRIPS], ids=str)
def test_supported_type_passes_the_check(type_hint: Any) -> None:
    DEFAULT_ENCODER.check_type_hint(type_hint, "input")


def test_custom_encoder_is_used_for_columns_too() -> None:
    class Reversing(ObjectEncoder):
        def encode(self, value: Any, type_hint: Any, where: str) -> Any:
            return value[::-1] if type_hint is str else super().encode(value, type_hint, where)

        def decode(self, data: Any, type_hint: Any, where: str) -> Any:
            return data[::-1] if type_hint is str else super().decode(data, type_hint, where)

    encoder = Reversing()

    assert encoder.encode_column("abc", str, "attribute") == "cba"
    assert encoder.decode_column("cba", str, "attribute") == "abc"


def test_own_serializer_that_gives_no_json_is_refused() -> None:
    class Odd(BaseModel):
        n: int = 1

        @field_serializer("n", return_type=Any)
        def _odd(self, n: int) -> Any:
            return Arbitrary()

    with pytest.raises(EncodeError, match="cannot be written as JSON"):
        DEFAULT_ENCODER.encode(Odd(), Odd, "input")


def test_types_are_built_once() -> None:
    assert _encoding_types.codec_of(list[Item]) is _encoding_types.codec_of(list[Item])


def test_unhashable_type_is_built_once_and_works() -> None:
    type_hint = Annotated[int, {"unit": "ms"}]

    data = DEFAULT_ENCODER.encode(3, type_hint, "input")

    assert DEFAULT_ENCODER.decode(data, type_hint, "input") == 3
    assert _encoding_types.codec_of(type_hint) is _encoding_types.codec_of(type_hint)


def test_cache_of_types_is_bounded() -> None:
    first: Any = Annotated[Point, {"number": -1}]
    marker = weakref.ref(_encoding_types.codec_of(first).classes[0])
    caches = (_encoding_types._cached_codec, _encoding_types._codec_of_unhashable)

    for number in range(2000):
        _encoding_types.codec_of(Annotated[int, {"number": number}])
        _encoding_types.codec_of(Annotated[int, number])
    gc.collect()

    assert marker() is Point
    assert all(cache.cache_info().currsize <= 1024 for cache in caches)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the type statement is syntax of Python 3.12")
def test_type_statements_and_generic_syntax_work() -> None:
    names: dict[str, Any] = {"BaseModel": BaseModel, "Item": Item}
    exec(
        "type Ids = list[int]\n"
        "type Named[K] = dict[K, Item]\n"
        "type Tree = dict[str, Tree]\n"
        "type Text = str\n"
        "class Crate[C](BaseModel):\n"
        "    content: C\n",
        names,
    )
    ids, named, tree, text, crate = (names[name] for name in ("Ids", "Named", "Tree", "Text", "Crate"))
    cases = [(ids, [1]), (named[int], {1: Item()}), (tree, {"a": {}}), (text, "a"), (crate[int], crate[int](content=1))]

    for type_hint, value in cases:
        data = DEFAULT_ENCODER.encode(value, type_hint, "input")
        assert DEFAULT_ENCODER.decode(data, type_hint, "input") == value
    assert DEFAULT_ENCODER.encode_column("a", text, "attribute") == "a"
    with pytest.raises(EncodeError, match=r"at \[1\]"):
        DEFAULT_ENCODER.encode([1, "x"], ids, "input")
    with pytest.raises(InvalidArgumentError, match="open type variable"):
        DEFAULT_ENCODER.check_type_hint(named, "input")


@dataclass
class Undeclared:
    at: datetime
    price: Decimal


def test_undeclared_values_are_written_by_the_types_they_have() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    value: dict[str, Any] = {"all": [Undeclared(at, Decimal("1.50")), (None, 0, False, "")], "ids": {7}}

    data = DEFAULT_ENCODER.encode_undeclared(value, "output")

    assert data == {"all": [{"at": "2026-01-01T00:00:00Z", "price": "1.50"}, [None, 0, False, ""]], "ids": [7]}
    assert DEFAULT_ENCODER.decode(data["all"][0], Undeclared, "output") == value["all"][0]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"a": [1.0, float("nan")]}, r"output: a\[1\].*NaN"),
        ({1: "one"}, "the key 1 of a dict is no text"),
        ({"a": object()}, "output: a"),
        ({"\0": 1}, "NUL"),
    ],
    ids=["NaN", "number as key", "object", "NUL in a key"],
)
def test_undeclared_value_that_cannot_be_stored_is_refused_with_its_path(value: object, problem: str) -> None:
    with pytest.raises(EncodeError, match=problem):
        DEFAULT_ENCODER.encode_undeclared(value, "output")


def test_undeclared_value_that_contains_itself_is_refused() -> None:
    value: list[object] = []
    value.append(value)

    with pytest.raises(EncodeError, match="contains itself"):
        DEFAULT_ENCODER.encode_undeclared(value, "output")
