"""The format "tailrace": Spark's interface to read a table's changes, a topic or a stream, and to write to one."""

from __future__ import annotations

from typing import cast

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tailrace.errors import Invalid
from tailrace.spark import columns, options
from tailrace.spark.connection import FIRST_S, SourceInfo, source_info
from tailrace.spark.failures import hide_traceback
from tailrace.spark.fetching import RowForm
from tailrace.spark.items import ItemsReader, items_info, sample_stored
from tailrace.spark.options import SourceOptions
from tailrace.spark.reading import BatchReader, sample, sample_items
from tailrace.spark.sink import BatchWriter, StreamWriter
from tailrace.spark.streaming import StreamReader


class TailraceSource(DataSource):
    """The data source behind `spark.read.format("tailrace")`, `readStream`, `write` and `writeStream`."""

    @classmethod
    def name(cls) -> str:
        return "tailrace"

    _strict = False  # the schema was inferred from records: one with other attributes is an error

    @hide_traceback
    def schema(self) -> StructType | str:
        """The columns, where no schema was given."""
        settings = self._settings()
        if settings.mode == "items":
            return self._items_schema(settings)
        found = source_info(settings, FIRST_S)
        if found.kind != "table":
            return (
                columns.inferred(settings.kind, sample(settings, found))
                if settings.infer
                else columns.public(found, settings)
            )
        if settings.row_schema is not None and settings.images == "typed":
            return columns.ddl(found, settings)
        if settings.images != "typed" and not settings.infer:
            return columns.public(found, settings)
        row = columns.declared(found)
        if row is None:
            self._strict = True  # Spark keeps this object
            row = columns.inferred_row(found, sample_items(settings, found))
        if settings.infer:
            return columns.with_facts(found.kind, row)
        return columns.public(found, settings, row)

    def _items_schema(self, settings: SourceOptions) -> StructType | str:
        found = items_info(settings)
        if settings.row_schema is not None:
            return columns.ddl(found, settings)
        row = columns.declared(found)
        if row is None:
            self._strict = True
            row = columns.inferred_row(found, sample_stored(settings))
        return columns.items_of(row)

    @hide_traceback
    def reader(self, schema: StructType) -> DataSourceReader:
        settings = self._settings()
        if settings.mode == "items":
            form = RowForm(to_arrow_schema(schema, timezone="UTC"), is_rows=True, strict=self._strict)
            return ItemsReader(settings, items_info(settings), form)
        return BatchReader(*self._opened(schema))

    @hide_traceback
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        if self._settings().mode == "items":
            raise Invalid(
                "mode=items is read once, not as a stream; remove the option to follow the changes of the table"
            )
        return StreamReader(*self._opened(schema))

    @hide_traceback
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(options.read(self.options, options.SINK), schema, overwrite=overwrite)

    @hide_traceback
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        writer = StreamWriter(options.read(self.options, options.SINK), schema, overwrite=overwrite)
        return cast(DataSourceStreamWriter, writer)

    def _settings(self) -> SourceOptions:
        return options.read(self.options, options.SOURCE)

    def _opened(self, schema: StructType) -> tuple[SourceOptions, SourceInfo, RowForm]:
        settings = self._settings()
        found = source_info(settings, FIRST_S)
        is_rows = columns.is_rows(found, schema)
        is_text = found.kind == "table" and not is_rows and columns.have_text_images(schema)
        form = RowForm(to_arrow_schema(schema, timezone="UTC"), is_rows=is_rows, is_text=is_text, strict=self._strict)
        return settings, found, form
