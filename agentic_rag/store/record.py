"""The base class of the store's records: one SQLModel class is the table, the row and the type of a noun.

A column has the name of its field, and its type follows from the field's annotation (``columns``). A field that may be
None may be NULL. ::

    class NoteRecord(Record, table=True):
        __tablename__ = "notes"
        __table_args__ = (UniqueConstraint("domain_id", "title"),)
        part_of = "domain"  # deleting a domain deletes its notes

        id: Key[str]
        domain_id: Indexed[str]
        title: str
        pages: tuple[int, ...] = ()


    NOTES = NoteRecord.__table__

Records are immutable: `Record.replace` returns a changed copy. The type checker checks the values of a new record;
nothing checks them at run time. Statements are Core statements on ``__table__``, prepared ones (``statements``) on hot
paths. `Record.load` makes a record of a row, without a session of SQLAlchemy's ORM, whose ``Session.exec`` takes a
hundred times as long.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, ClassVar, Self, cast

import sqlalchemy as sa
from pydantic import ConfigDict
from sqlalchemy import Column, Connection, MetaData, Select, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import ClassManager
from sqlalchemy.orm.attributes import manager_of_class
from sqlalchemy.orm.state import InstanceState
from sqlmodel import SQLModel
from sqlmodel.main import FieldInfoMetadata, SQLModelMetaclass

from agentic_rag.store.columns import column_type, without_none
from agentic_rag.store.statements import Prepared, bind_values

METADATA = MetaData()
"""All tables, complete once the package is imported."""

_PARTS: dict[str, list[Column[Any]]] = {}
_Factory = Callable[[], Any]
_NO_OPTIONS = FieldInfoMetadata()
_set = object.__setattr__


class _ReadableAttribute:
    """A mapped attribute that does not slow down reading it from a record.

    SQLAlchemy's attribute takes part in each read and write, at forty times the cost of a plain attribute. This one
    leaves reads to the record's ``__dict__``, and passes the others on: those on the class, for queries, and those of
    values that a session has expired.
    """

    def __init__(self, attribute: Any) -> None:
        self._attribute = attribute

    def __get__(self, record: object, owner: type) -> Any:
        return self._attribute.__get__(record, owner)


class RecordType(SQLModelMetaclass):
    """The class of record classes: prepares what `Record.load` and the constructor need."""

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, object], **options: Any) -> None:
        super().__init__(name, bases, namespace, **options)
        if "__table__" not in cls.__dict__:
            return
        record: type[Record] = cls  # type: ignore[assignment]
        record._prepare()


class Record(SQLModel, metaclass=RecordType):
    """A row of a table. A subclass with ``table=True`` and ``__tablename__`` defines both."""

    # Building pydantic's validators takes most of the time of an import, and rows are not validated.
    model_config = ConfigDict(frozen=True, defer_build=True, arbitrary_types_allowed=True)  # type: ignore[assignment]
    metadata: ClassVar[MetaData] = METADATA
    __table__: ClassVar[Table]
    part_of: ClassVar[str | None] = None
    """The noun whose deletion also deletes these rows (`delete_parts`), identified by the column ``{part_of}_id``."""
    names: ClassVar[tuple[str, ...]] = ()
    """The fields, in the order of the table's columns."""
    _names_set: ClassVar[set[str]]
    _manager: ClassVar[ClassManager[Any]]
    _defaults: ClassVar[dict[str, Any]]
    _factories: ClassVar[Sequence[tuple[str, _Factory]]]
    _insertion: ClassVar[Prepared]

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Give SQLModel the columns of a table, which it cannot derive from such types as tuples and dataclasses."""
        if "__tablename__" not in cls.__dict__:
            return
        for name, field in cls.__pydantic_fields__.items():
            kind, nullable = without_none(field.annotation)
            options = next((part for part in field.metadata if isinstance(part, FieldInfoMetadata)), _NO_OPTIONS)
            is_key = options.primary_key is True
            column = Column(
                name,
                column_type(kind),
                primary_key=is_key,
                index=options.index is True,
                nullable=nullable,
                autoincrement=False if is_key else "auto",
            )
            field.metadata = [FieldInfoMetadata(sa_column=column)]

    @classmethod
    def _prepare(cls) -> None:
        fields = cls.__pydantic_fields__
        cls.names = tuple(fields)
        cls._names_set = set(fields)
        cls._manager = manager_of_class(cls)
        optional = {name: field for name, field in fields.items() if not field.is_required()}
        cls._factories = [
            (name, cast(_Factory, field.default_factory)) for name, field in optional.items() if field.default_factory
        ]
        cls._defaults = {name: field.default for name, field in optional.items() if not field.default_factory}
        cls._insertion = Prepared(sa.insert(cls.__table__))
        type.__delattr__(
            cls, "__init__"
        )  # SQLAlchemy's, which calls the one below after four hooks that have no listener
        for name in fields:
            type.__setattr__(cls, name, _ReadableAttribute(cls.__dict__[name]))
        if cls.part_of is not None:
            _PARTS.setdefault(cls.part_of, []).append(cls.__table__.c[f"{cls.part_of}_id"])

    def __init__(self, **values: Any) -> None:
        """Make a record of the values of its fields.

        Raises:
            TypeError: a value is missing, or has no field.
        """
        fields = self._defaults | values
        for name, factory in self._factories:
            if name not in values:
                fields[name] = factory()
        if fields.keys() != self._names_set:
            raise _wrong_names(type(self), fields)
        fields["_sa_instance_state"] = InstanceState(self, self._manager)
        _set(self, "__dict__", fields)

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "_sa_instance_state":
            raise AttributeError(f"{type(self).__name__}.{name} cannot be assigned: records are immutable")
        self.__dict__[name] = value

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values of some fields.

        Raises:
            TypeError: a value has no field.
        """
        fields = self.__dict__ | changes
        if len(fields) != len(self.__dict__):
            raise _wrong_names(type(self), self.column_values() | changes)
        return self._of(fields)

    @classmethod
    def load(cls, row: Sequence[Any]) -> Self:
        """Return the record of a row, whose values are in the order of the table's columns."""
        return cls._of(dict(zip(cls.names, row, strict=True)))

    @classmethod
    def _of(cls, fields: dict[str, object]) -> Self:
        # What `ClassManager.new_instance` does, without passing each step through the hooks of pydantic and SQLAlchemy
        record = object.__new__(cls)
        fields["_sa_instance_state"] = InstanceState(record, cls._manager)
        _set(record, "__dict__", fields)
        _set(record, "__pydantic_fields_set__", cls._names_set)
        _set(record, "__pydantic_extra__", None)
        _set(record, "__pydantic_private__", None)
        return record

    def column_values(self) -> dict[str, object]:
        """Return the fields by the names of their columns."""
        fields = self.__dict__
        return {name: fields[name] for name in self.names}

    def insert(self, conn: Connection) -> None:
        """Store the record as a new row.

        Raises:
            IntegrityError: the key, or another unique value, is taken.
        """
        self._insertion.run(conn, **self.__dict__)

    def put(self, conn: Connection, unique: Sequence[str], *, keep: Collection[str] = ()) -> None:
        """Store the record in place of the row that has the same values of the columns ``unique``, if there is one.

        One statement, because PostgreSQL runs two transactions at once: if each deleted the row and inserted its own,
        the second insertion would fail.

        Args:
            conn: a transaction.
            unique: the columns of the table's key or of one of its unique constraints.
            keep: columns whose values an earlier row keeps.
        """
        dialect = postgresql if conn.dialect.name == "postgresql" else sqlite
        insertion = dialect.insert(self.__table__).values(**self.column_values())
        changes = {name: insertion.excluded[name] for name in self.names if name not in {*unique, *keep}}
        conn.execute(insertion.on_conflict_do_update(index_elements=unique, set_=changes))

    @classmethod
    def first(cls, conn: Connection, query: Select[Any] | Prepared, **values: object) -> Self | None:
        """Return the first record of a query of all columns, or None.

        ``values`` are the values of the query's parameters (`statements.parameter`), by column.
        """
        if isinstance(query, Prepared):
            row = query.first(conn, **values)
        else:
            row = conn.execute(query, bind_values(values)).first()
        return None if row is None else cls.load(row)

    @classmethod
    def all(cls, conn: Connection, query: Select[Any] | Prepared, **values: object) -> list[Self]:
        """Return the records of a query of all columns; ``values`` as in `first`."""
        if isinstance(query, Prepared):
            return [cls.load(row) for row in query.all(conn, **values)]
        return [cls.load(row) for row in conn.execute(query, bind_values(values))]


def _wrong_names(record: type[Record], names: Iterable[str]) -> TypeError:
    actual, expected = set(names), set(record.names)
    unknown, missing = sorted(actual - expected), sorted(expected - actual)
    return TypeError(f"{record.__name__} has no field {unknown}" if unknown else f"{record.__name__} lacks {missing}")


def delete_parts(conn: Connection, noun: str, ident: str) -> None:
    """Delete the rows of every table that is ``part_of`` a noun and belongs to ``ident``."""
    for column in _PARTS[noun]:
        conn.execute(sa.delete(column.table).where(column == ident))
