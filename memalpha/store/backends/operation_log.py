"""`OperationLog`: the operations of a namespace, in the order in which they were applied."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple, TypeVar

from memalpha.arguments import brief_repr
from memalpha.errors import DamagedStore, StoreError
from memalpha.store.backends.base import Backend
from memalpha.store.backends.row_codec import OPERATION_VALUES, decode_log_row, logged_values
from memalpha.store.backends.scope import NamespaceScope
from memalpha.store.fields import FIELDS, OPERATION_NAMES, sql_default
from memalpha.store.filters import format_utc, parse_time
from memalpha.types import MemoryEntry, Operation

T = TypeVar("T")
OPERATION_COLUMNS = f"seq, time, head, kind, {OPERATION_VALUES}"
_RELEASE, _MOST_YEARS = "2026-11-01", 10  # a clock further ahead of both the release and the log is wrong
_FEW = 500  # ids that a statement names
_LAST = 2**63 - 1  # position after all others
_FINGERPRINT_ROWS = 64  # log rows that a fingerprint covers
_INSERT_OPERATION = (
    f"INSERT INTO operations (ns, {OPERATION_COLUMNS}) VALUES ({','.join('?' * (5 + len(OPERATION_NAMES)))})"
)
_SELECT_LOG_END = (
    "SELECT seq, time, (SELECT min(expires) FROM versions INDEXED BY expiring "
    "WHERE ns = ?1 AND valid_to IS NULL AND expires IS NOT NULL) "
    "FROM operations WHERE ns = ?1 ORDER BY seq DESC LIMIT 1"
)
_OPTIONAL_DEFAULTS = {field.name: sql_default(field) for field in FIELDS}  # what replaces missing fields of an insert


class LogEnd(NamedTuple):
    """End of a namespace's log.

    Attributes:
        position: Position of the last operation; 0 for an empty log.
        time: Time of the last operation.
        next_expiry: Time at which the next live entry expires, or None.
    """

    position: int = 0
    time: str = ""
    next_expiry: str | None = None


def check_clock(database: Backend, log_end: LogEnd) -> str:
    """Return the clock's time, if it can be right: the log's times never go back, so a wrong one would stay.

    Args:
        database: Database with the clock.
        log_end: End of the log.

    Raises:
        StoreError: It is over ten years after this release and after the last operation, or it has jumped.
        DamagedStore: The log's end has no year.
    """
    latest = max(log_end.time, _RELEASE)
    if not (latest.isascii() and latest[:4].isdigit()):
        raise DamagedStore(f"the last time of the log is {latest[:40]!r}: run `memalpha doctor`, or go back to a copy")
    now = database.checked_now(log_end.time)
    if int(now[:4]) - int(latest[:4]) > _MOST_YEARS:
        raise StoreError(
            f"the clock reads {now[:19]}, more than {_MOST_YEARS} years after {latest[:10]}: set it right; the log's "
            "times never go back, so nothing was written"
        )
    return now


def _checked(value: Any, kind: type[T], name: str) -> T:
    """Return a value of the log. Raises `DamagedStore` if it has another type."""
    if type(value) is not kind:
        raise DamagedStore(f"the log is damaged: {name} is {type(value).__name__}: run `memalpha doctor`")
    return value


class OperationLog:
    """Operations of a namespace by position: 1, 2, 3 and so on. Call every method inside a transaction."""

    def __init__(self, scope: NamespaceScope) -> None:
        self._scope = scope

    @property
    def position(self) -> int:
        """Position of the last operation; 0 for an empty log."""
        (position,) = self._scope.first("SELECT seq FROM operations WHERE ns = ? ORDER BY seq DESC LIMIT 1") or (0,)
        return _checked(position, int, "its last position")

    def end(self) -> LogEnd:
        """Return the end of the log. Raises `DamagedStore`."""
        row = self._scope.first(_SELECT_LOG_END)
        if row is None:
            return LogEnd()
        position, time, expiry = row
        if type(position) is not int or type(time) is not str:
            raise DamagedStore(f"the log's end is damaged (position {position!r:.40}): run `memalpha doctor`")
        if expiry is not None and type(expiry) is not str:
            raise self._damaged_expiry()
        return LogEnd(position, time, expiry)

    def _damaged_expiry(self) -> DamagedStore:
        (id,) = self._scope.first("SELECT id FROM versions WHERE ns = ? AND typeof(expires) = 'blob' LIMIT 1")
        return DamagedStore(
            f"the stored row of {str(id)[:80]!r} is damaged: its expiry is no text: run `memalpha doctor`"
        )

    def effective_position(self, position: int) -> int:
        """Return the position whose facts the memory holds after a log row; 0 before the first."""
        row = self._scope.first("SELECT head FROM operations WHERE ns = ? AND seq = ?", position)
        return _checked(row[0], int, f"the head of position {position}") if row else 0

    def kind_at(self, position: int) -> str:
        """Return the kind of the operation at a position; "" before the first."""
        row = self._scope.first("SELECT kind FROM operations WHERE ns = ? AND seq = ?", position)
        return row[0] if row else ""

    def position_at(self, time: str) -> int:
        """Return the last position at or before `time`. Times never decrease along the log."""
        query = "SELECT time FROM operations WHERE ns = ? AND seq = ?"

        def time_at(position: int) -> str:
            row = self._scope.first(query, position) or (None,)
            return _checked(row[0], str, f"the time of position {position}")

        return bisect_right(range(1, self.position + 1), time, key=time_at)

    def resolve_as_of(self, as_of: int | str | None) -> int | None:
        """Return the log position that `as_of` means; None (now) stays None. Raises `StoreError`."""
        if as_of is None:
            return None
        if isinstance(as_of, str):
            try:
                return self.position_at(format_utc(parse_time(as_of)))
            except (ValueError, OverflowError) as error:
                raise StoreError(f"as_of {brief_repr(as_of)} is neither a log position nor an ISO time") from error
        if isinstance(as_of, bool) or not isinstance(as_of, int) or as_of < 0:
            raise StoreError(f"as_of {brief_repr(as_of)} is neither a log position (0 or more) nor an ISO time")
        return min(as_of, self.position)

    def resolve_position(self, as_of: int | str | None) -> int:
        """Return the log position that `as_of` means; for None, the current one. Raises `StoreError`."""
        position = self.resolve_as_of(as_of)
        return self.position if position is None else position

    def page(self, after: int, limit: int) -> list[tuple[int, str, int, Operation]]:
        """Return at most `limit` rows after a position: position, time, effective position, operation."""
        rows = self._scope.select(
            f"SELECT {OPERATION_COLUMNS} FROM operations WHERE ns = ? AND seq > ? ORDER BY seq LIMIT ?", after, limit
        )
        return [decode_log_row(tuple(row)) for row in rows]

    def quarantine(self) -> list[tuple[int, str, Operation]]:
        """Return the operations that were quarantined, and their reviews: position, time, operation."""
        query = (
            f"SELECT {OPERATION_COLUMNS} FROM operations INDEXED BY quarantine "
            "WHERE ns = ? AND kind IN ('quarantined', 'reviewed') ORDER BY seq"
        )
        rows = (decode_log_row(tuple(row)) for row in self._scope.select(query))
        return [(position, time, operation) for position, time, _, operation in rows]

    def is_quarantined(self, id: str) -> bool:
        """Return True if an operation with this id was quarantined."""
        query = (
            "SELECT 1 FROM operations INDEXED BY quarantine "
            "WHERE ns = ? AND kind IN ('quarantined', 'reviewed') AND id = ? LIMIT 1"
        )
        return self._scope.first(query, id) is not None

    def core_at(self, position: int) -> str:
        """Return the core memory text at a position."""
        row = self._scope.first(
            "SELECT content FROM operations INDEXED BY core_updates WHERE ns = ? AND kind = 'core_update' AND seq <= ? "
            "ORDER BY seq DESC LIMIT 1",
            position,
        )
        return _checked(row[0], str, "a text of the core memory") if row else ""

    def changed_ids(self, after: int, last: int | None = None) -> list[str]:
        """Return the ids that operations after a position changed, up to `last` (the log's end)."""
        query = "SELECT DISTINCT id FROM operations WHERE ns = ? AND seq > ? AND seq <= ? AND id IS NOT NULL"
        return [id for (id,) in self._scope.select(query, after, _LAST if last is None else last)]

    def last_ids(self, position: int, limit: int) -> list[tuple[int, str | None]]:
        """Return position and id of the last `limit` operations up to a position, newest first.

        The id is None where an operation changes no entry, as in quarantine.
        """
        query = "SELECT seq, kind, id FROM operations WHERE ns = ? AND seq <= ? ORDER BY seq DESC LIMIT ?"
        rows = self._scope.select(query, position, limit)
        return [(at, None if kind == "quarantined" else id) for at, kind, id in rows]

    def has_erasure_after(self, position: int) -> bool:
        """Return True if entries were erased after a position, so that earlier states may have changed."""
        query = "SELECT 1 FROM operations INDEXED BY erasures WHERE ns = ? AND seq > ? AND kind = 'erased' LIMIT 1"
        return self._scope.first(query, position) is not None

    def fingerprint(self, position: int) -> str:
        """Return a digest of the last log rows up to a position.

        Logs that have diverged differ in it.
        """
        rows = self.rows(position, after=position - _FINGERPRINT_ROWS).fetchall()
        return hashlib.sha256(repr(rows).encode("utf-8", "surrogatepass")).hexdigest()

    def rows(self, position: int, *, after: int = 0) -> Any:
        """Return a cursor over the raw rows up to a position, in log order."""
        query = f"SELECT {OPERATION_COLUMNS} FROM operations WHERE ns = ? AND seq > ? AND seq <= ? ORDER BY seq"
        return self._scope.select(query, after, position)

    def append(self, row: tuple[Any, ...]) -> None:
        """Append an operation, given by the namespace's id and the values of `OPERATION_COLUMNS`."""
        self._scope.statements.execute(_INSERT_OPERATION, row)

    def extend(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Append raw rows of another log."""
        self._scope.insert(_INSERT_OPERATION, rows)

    def append_inserts(
        self, start: int, time: str, entries: Sequence[MemoryEntry], optional_fields: Sequence[Mapping[str, Any]]
    ) -> None:
        """Append inserts of new ids in bulk.

        Args:
            start: Position of the first one.
            time: Time of all.
            entries: First versions of the new entries.
            optional_fields: For each entry, the optional fields that its insert gave.
        """
        # Binding a value costs a good part of inserting its row, so constants are not bound.
        bound_names = [name for name in _OPTIONAL_DEFAULTS if any(name in fields for fields in optional_fields)]
        constants_by_name = {name: text for name, text in _OPTIONAL_DEFAULTS.items() if name not in bound_names}
        placeholders = ", ".join(f"?{number}" for number in range(1, 6 + len(bound_names)))
        columns = ", ".join(["seq, time, id, category, content", *bound_names, "ns, head, kind", *constants_by_name])
        constants = ", ".join([f"{self._scope.namespace_id}, ?1, 'insert'", *constants_by_name.values()])
        rows = zip(
            range(start, start + len(entries)),
            repeat(time),
            *([getattr(entry, name) for entry in entries] for name in ("id", "category", "content")),
            *(logged_values(entries, name, optional_fields) for name in bound_names),
            strict=False,  # the time is repeated without end
        )
        self._scope.statements.executemany(
            f"INSERT INTO operations ({columns}) VALUES ({placeholders}, {constants})", rows
        )

    def erase_core_history(self, quarantined: Iterable[int] = ()) -> int:
        """Turn all core updates but the last into stubs and return their number.

        Args:
            quarantined: Positions of quarantined core updates that become stubs, too.
        """
        query = "SELECT seq FROM operations INDEXED BY core_updates WHERE ns = ? AND kind = 'core_update' ORDER BY seq"
        positions = [position for (position,) in self._scope.select(query)][:-1]
        self.clear([(None, position) for position in (*positions, *quarantined)])
        return len(positions)

    def erase(self, ids: Collection[str] | None) -> list[str | None]:
        """Turn all operations on `ids` (None: all operations) into stubs and return their ids, in log order."""
        few = () if ids is None or len(ids) > _FEW else tuple(ids)  # the database finds a few in a quarter of the time
        condition = f"AND id IN ({','.join('?' * len(few))})" if few else ""
        query = f"SELECT seq, id FROM operations WHERE ns = ? AND kind <> 'erased' {condition} ORDER BY seq"
        erased_ids = set(ids or ())
        rows = [(position, id) for position, id in self._scope.select(query, *few) if ids is None or id in erased_ids]
        first_positions: dict[str | None, int] = {}
        for position, id in rows:
            first_positions.setdefault(id, position)
        self.clear([(id and f"erased#{first_positions[id]}", position) for position, id in rows])
        return [id for _, id in rows]

    def forks(self, ids: Sequence[str], names: Sequence[str]) -> list[str]:
        """Return those of `names` whose log shares operations on some ids with this one, as forks do."""
        found: set[str] = set()
        for start in range(0, len(ids), _FEW):
            batch = ids[start : start + _FEW]
            query = (  # each log is read by its positions
                "SELECT DISTINCT n.name FROM operations own CROSS JOIN namespaces n CROSS JOIN operations o "
                f"WHERE own.ns = ? AND own.id IN ({','.join('?' * len(batch))}) "
                f"AND n.name IN ({','.join('?' * len(names))}) "
                "AND o.ns = n.ns AND o.seq = own.seq AND o.id = own.id AND o.time = own.time"
            )
            found.update(name for (name,) in self._scope.select(query, *batch, *names))
        return sorted(found)

    def stubs(self, position: int) -> dict[int, str | None]:
        """Return the stubs up to a position: their positions and ids. The rows that log erasures are among them."""
        query = "SELECT seq, id FROM operations INDEXED BY erasures WHERE ns = ? AND kind = 'erased' AND seq <= ?"
        return dict(self._scope.select(query, position).fetchall())

    def clear(self, stubs: Iterable[tuple[str | None, int]]) -> None:
        """Turn operations into stubs, given by the id of the stub and the position."""
        cleared = ", ".join(f"{name} = NULL" for name in OPERATION_NAMES[1:])
        self._scope.statements.executemany(
            f"UPDATE operations SET kind = 'erased', id = ?, {cleared} WHERE ns = ? AND seq = ?",
            [(id, self._scope.namespace_id, position) for id, position in stubs],
        )
