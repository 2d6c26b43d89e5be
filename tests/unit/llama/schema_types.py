"""Types that people use in tools, for pydantic. `zod.mjs` has the same ones for zod, and `zod.json` their schemas."""

from __future__ import annotations

import datetime as dt
import enum
import ipaddress
import pathlib
import uuid
from typing import Annotated, Any, Literal

from pydantic import UUID4, AwareDatetime, BaseModel, ConfigDict, Field, JsonValue, RootModel, SecretStr


class Fruit(enum.Enum):
    APPLE = "apple"
    PEAR = "pear"


class Priority(enum.IntEnum):
    LOW = 1
    HIGH = 10


class Address(BaseModel):
    street: str = Field(min_length=1, max_length=20, description="with the number")
    city: str
    country: str = Field(pattern=r"^[A-Z]{2}$")


class Person(BaseModel):
    name: str
    age: int | None = Field(None, ge=0, le=150)
    address: Address | None = None
    tags: list[str] = []


class Point(BaseModel):
    model_config = ConfigDict(extra="forbid")
    latitude: float = Field(ge=-90, le=90)
    longitude: float = Field(ge=-180, le=180)


class Money(BaseModel):
    amount: Annotated[float, Field(ge=0, multiple_of=0.25)]
    currency: Literal["EUR", "USD"]


class Line(BaseModel):
    sku: str = Field(pattern=r"^[A-Z]{3}-[0-9]{4}$")
    quantity: int = Field(gt=0, le=99)
    price: Money


class Order(BaseModel):
    id: uuid.UUID
    placed: dt.date
    lines: list[Line] = Field(min_length=1, max_length=2)
    note: str | None = None


class Circle(BaseModel):
    kind: Literal["circle"]
    radius: float = Field(gt=0)


class Square(BaseModel):
    kind: Literal["square"]
    side: int = Field(ge=1)


Shape = Annotated[Circle | Square, Field(discriminator="kind")]


class Drawing(BaseModel):
    shapes: list[Shape] = Field(max_length=2)


class Node(BaseModel):
    value: int
    children: list[Node] = []


class Chain(BaseModel):
    value: str
    rest: Chain | None = None


class Folder(BaseModel):
    name: str
    entries: list[File | Folder]


class File(BaseModel):
    name: str
    size: int = Field(ge=0)


class Comparison(BaseModel):
    op: Literal["eq", "lt"]
    field: str
    value: int | str | bool


class Both(BaseModel):
    op: Literal["and", "or"]
    filters: list[Filter] = Field(min_length=1, max_length=2)


class Filter(RootModel[Annotated[Comparison | Both, Field(discriminator="op")]]):
    pass


class Event(BaseModel):
    title: str
    start: AwareDatetime
    priority: Priority = Priority.LOW
    attendees: dict[str, bool] = {}


class Page(BaseModel):
    query: str
    limit: int = Field(10, ge=1, le=100)
    offset: int = Field(0, ge=0)
    sort: Literal["asc", "desc"] = "asc"


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, int]
    name: str


class Edit(BaseModel):
    path: pathlib.Path
    old: str
    new: str
    everywhere: bool = False


class Add(BaseModel):
    op: Literal["add"]
    path: str = Field(pattern="^/")
    value: JsonValue


class Remove(BaseModel):
    op: Literal["remove"]
    path: str = Field(pattern="^/")


class Alias(BaseModel):
    from_: str = Field(alias="from")
    to: str = Field(alias="to address")


TYPES: dict[str, Any] = {
    "text": str, "whole": int, "number": float, "yes": bool, "nothing": None, "anything": JsonValue,
    "date": dt.date, "time": dt.time, "moment": AwareDatetime, "uuid": uuid.UUID, "uuid4": UUID4,
    "address": ipaddress.IPv4Address, "secret": SecretStr, "bytes": bytes, "fruit": Fruit, "priority": Priority,
    "literal": Literal["a", 1, True, None], "optional": int | None, "either": int | str,
    "percent": Annotated[int, Field(ge=0, le=100)], "share": Annotated[float, Field(ge=0, le=1)],
    "fives": Annotated[int, Field(multiple_of=5)], "name": Annotated[str, Field(min_length=1, max_length=8)],
    "phone": Annotated[str, Field(pattern=r"^\+[1-9][0-9]{6,14}$")], "record": dict[str, int],
    "records": dict[str, dict[str, bool]], "list": Annotated[list[int], Field(min_length=1, max_length=3)],
    "matrix": list[list[float]], "pair": tuple[str, int], "several": tuple[int, ...], "person": Person, "point": Point,
    "order": Order, "drawing": Drawing, "tree": Node, "chain": Chain, "folder": Folder, "filter": Filter,
    "event": Event, "page": Page, "open": Open, "edit": Edit, "patch": list[Add | Remove], "alias": Alias,
}  # fmt: skip
