"""The format "tailrace": Spark's interface to read a table's changes, a topic or a stream, and to write to one."""

from __future__ import annotations

from typing import cast

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tailrace.spark import columns, options
from tailrace.spark.connection import FIRST_S, SourceInfo, source_info
from tailrace.spark.failures import hide_traceback
from tailrace.spark.reading import BatchReader, sample
from tailrace.spark.sink import BatchWriter, StreamWriter
from tailrace.spark.streaming import StreamReader


class TailraceSource(DataSource):
    """The data source behind `spark.read.format("tailrace")`, `readStream`, `write` and `writeStream`."""

    @classmethod
    def name(cls) -> str:
        return "tailrace"

    @hide_traceback
    def schema(self) -> StructType:
        """The columns, where no schema was given."""
        settings = self._settings()
        found = source_info(settings, FIRST_S)
        if not settings.infer:
            return columns.public(found)
        plain = msgspec.structs.replace(settings, images="plain")
        return columns.inferred(settings.kind, sample(plain, found))

    @hide_traceback
    def reader(self, schema: StructType) -> DataSourceReader:
        settings, found, shape, is_typed = self._opened(schema)
        return BatchReader(settings, found, shape, is_typed=is_typed)

    @hide_traceback
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        settings, found, shape, is_typed = self._opened(schema)
        return StreamReader(settings, found, shape, is_typed=is_typed)

    @hide_traceback
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(options.read(self.options, options.SINK), schema, overwrite=overwrite)

    @hide_traceback
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        writer = StreamWriter(options.read(self.options, options.SINK), schema, overwrite=overwrite)
        return cast(DataSourceStreamWriter, writer)

    def _settings(self) -> options.SourceOptions:
        return options.read(self.options, options.SOURCE)

    def _opened(self, schema: StructType) -> tuple[options.SourceOptions, SourceInfo, pa.Schema, bool]:
        settings = self._settings()
        found = source_info(settings, FIRST_S)
        is_typed = columns.is_typed(found, schema)
        if is_typed:  # attributes are read out of plain JSON
            settings = msgspec.structs.replace(settings, images="plain")
        return settings, found, to_arrow_schema(schema, timezone="UTC"), is_typed
