"""The fast constructor makes what the dataclass's own makes."""

import copy
import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, field, replace
from typing import Any

import pytest

from memalpha.types import Hit, MemoryEntry, Operation, with_fast_constructor


@dataclass(frozen=True, slots=True)
class Plain:
    id: str
    number: int = 3
    parts: dict = field(default_factory=dict)


@with_fast_constructor
@dataclass(frozen=True, slots=True)
class Fast:
    id: str
    number: int = 3
    parts: dict = field(default_factory=dict)


@pytest.mark.parametrize("values, named", [(("a",), {}), (("a", 5), {"parts": {"x": 1}}), ((), {"id": "b"})])
def test_it_makes_the_same(values: Any, named: Any) -> None:
    fast, plain = Fast(*values, **named), Plain(*values, **named)
    assert asdict(fast) == asdict(plain) and type(fast) is Fast and repr(fast) == repr(plain).replace("Plain", "Fast")
    assert fast == Fast(*values, **named) != Fast("other") and Fast("a").parts is not Fast("a").parts
    assert replace(fast, number=9).number == 9 and pickle.loads(pickle.dumps(fast)) == copy.deepcopy(fast) == fast
    with pytest.raises(FrozenInstanceError):
        fast.number = 4  # pyright: ignore


def test_the_records_of_the_store_have_it() -> None:
    for record, values in ((MemoryEntry, ("a#b", "semantic", "c")), (Operation, ("insert",)), (Hit, (None, 1.0))):
        instance: Any = record(*values)  # pyright: ignore
        assert type(instance) is record and record.__init__.__wrapped__ is not record.__init__
        with pytest.raises(FrozenInstanceError):
            setattr(instance, next(iter(record.__dataclass_fields__)), "x")
