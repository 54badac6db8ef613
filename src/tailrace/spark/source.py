"""The format "tailrace": what Spark calls to read a table's changes, a topic or a stream, and to write to one."""

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
from tailrace.spark.connection import FIRST_S, Facts, facts
from tailrace.spark.failures import told
from tailrace.spark.reading import Reader, sample
from tailrace.spark.sink import StreamWriter, Writer
from tailrace.spark.streaming import StreamReader


class Source(DataSource):
    """`spark.read.format("tailrace")` and its kin."""

    @classmethod
    def name(cls) -> str:
        return "tailrace"

    @told
    def schema(self) -> StructType:
        """The columns, where the user has given none."""
        asked = self._asked()
        found = facts(asked, FIRST_S)
        if not asked.infer:
            return columns.public(found)
        plain = msgspec.structs.replace(asked, images="plain")
        return columns.inferred(asked.kind, sample(plain, found))

    @told
    def reader(self, schema: StructType) -> DataSourceReader:
        asked, found, shape, is_typed = self._opened(schema)
        return Reader(asked, found, shape, is_typed=is_typed)

    @told
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        asked, found, shape, is_typed = self._opened(schema)
        return StreamReader(asked, found, shape, is_typed=is_typed)

    @told
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return Writer(options.read(self.options, options.SINK), schema, overwrite=overwrite)

    @told
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        writer = StreamWriter(options.read(self.options, options.SINK), schema, overwrite=overwrite)
        return cast(DataSourceStreamWriter, writer)

    def _asked(self) -> options.Options:
        return options.read(self.options, options.SOURCE)

    def _opened(self, schema: StructType) -> tuple[options.Options, Facts, pa.Schema, bool]:
        asked = self._asked()
        found = facts(asked, FIRST_S)
        is_typed = columns.is_typed(found, schema)
        if is_typed:  # attributes are read out of plain JSON
            asked = msgspec.structs.replace(asked, images="plain")
        return asked, found, to_arrow_schema(schema, timezone="UTC"), is_typed
