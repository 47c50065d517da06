"""Files that Spark reads by itself: all of a directory, or what is added to it as well."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rivven.connect.files import absolute
from rivven.connect.sdk import Finding, Launch, Settings, Source, Stream, setting

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Form = Literal["csv", "json", "jsonl", "parquet"]
ENDINGS: dict[str, Form] = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}


GLOB = re.compile(r"[\\*?\[\]{}]")


class FileSourceSettings(Settings):
    path: str = setting("A file, a directory, or a pattern with * and ?.", example="./in/*.csv", least=1)
    format: Literal["auto", "csv", "json", "jsonl", "parquet"] = setting(
        "`auto` goes by the ending of the first file; `json` is one document, `jsonl` has one in each line.",
        default="auto",
    )
    watch: bool = setting(
        "Go on with files that are added; without it, it ends with those that are there.", default=True
    )
    schema: str | None = setting(
        "The columns as a Spark DDL; without it they are found from the files and kept in the state directory.",
        default=None,
        example="id BIGINT, name STRING",
    )
    header: bool = setting("Whether the first line of a CSV file has the names of the columns.", default=True)
    delimiter: str = setting("What stands between the columns of a CSV file.", default=",", least=1, most=4)
    recursive: bool = setting("Look into folders as well.", default=False)
    max_files_per_trigger: int = setting("Files in one micro-batch.", default=1000, least=1)
    options: dict[str, str] = setting("Further options of Spark's reader of this format.", factory=dict)

    def problems(self) -> Iterable[tuple[str, str]]:
        if self.format == "auto" and not _suffix(self.path) and not _files(self.path, self.recursive):
            yield "format", f"there is no file at {self.path} yet to tell the format by; say which it will be"


class FileSource(Source[FileSourceSettings]):
    name = "file"
    aliases = ("files", "local-file", "directory")
    title = "Files"
    summary = "Reads CSV, JSON, JSON lines or Parquet files, and goes on with those that are added."
    docs = """
    Each file is read once; a file that changes later is not read again, so write it elsewhere and move it in. Spark
    reads the files itself, on all executors, which have to see the path: object stores and shared disks do as well.

    A line that cannot be read stops the pipeline, or goes to the dead-letter topic if there is one.
    """
    example = """
    sources:
      customers:
        connector: file
        topic: customers
        key: [customer_id]
        config:
          path: ./in/*.csv
          watch: false
    """
    extra = "spark"
    modules = ("pyarrow",)
    delivery = "exactly_once"

    @property
    def bounded(self) -> bool:
        return not self.settings.watch

    @property
    def stream(self) -> str:
        return Path(self.settings.path).stem.replace("*", "") or Path(self.settings.path).parent.name

    def form(self) -> Form:
        if self.settings.format != "auto":
            return self.settings.format
        if own := _suffix(self.settings.path):
            return own
        files = _files(self.settings.path, self.settings.recursive)
        return next((form for file in files if (form := _suffix(file))), "jsonl")

    def check(self) -> list[Finding]:
        if "://" in self.settings.path:
            return [Finding("is looked at by Spark only", "note", "path")]
        if _files(self.settings.path, self.settings.recursive):
            return []
        if not self.settings.watch or self.settings.schema is None:
            needs = "with watch: false there must be one" if not self.settings.watch else "or give the schema"
            return [Finding(f"there is no file at {self.settings.path}", field="path", fix=f"add a file; {needs}")]
        return [Finding(f"there is no file at {self.settings.path} yet", "warning", "path")]

    def discover(self) -> list[Stream]:
        found = _files(self.settings.path, self.settings.recursive)
        return [Stream(Path(path).stem, self._arrow_schema(path)) for path in found[:1]]

    def _arrow_schema(self, path: str) -> pa.Schema:
        import pyarrow.csv as csv
        import pyarrow.json as json
        import pyarrow.parquet as pq

        form = self.form()
        if form == "parquet":
            return pq.read_schema(path)
        if form == "csv":
            parsing = csv.ParseOptions(delimiter=self.settings.delimiter)
            reading = csv.ReadOptions(autogenerate_column_names=not self.settings.header)
            return csv.open_csv(path, reading, parsing).schema
        return json.read_json(path).schema

    def frame(self, spark: SparkSession, launch: Launch) -> DataFrame:
        from pyspark.sql.types import StructType

        from rivven.connect.records import schema_from

        form = self.form()
        options = {"recursiveFileLookup": str(self.settings.recursive).lower()}
        if form == "csv":
            options |= {"header": str(self.settings.header).lower(), "sep": self.settings.delimiter}
        if form == "json":
            options["multiLine"] = "true"
        options |= self.settings.options
        reader_format = "json" if form == "jsonl" else form
        where = absolute(self.settings.path)
        if Path(self.settings.path).is_file():
            where = alone(where)
        if self.settings.schema is not None:
            text = self.settings.schema
        else:
            text = launch.recall("schema", lambda: self._infer(spark, reader_format, options, where))
        schema = schema_from(text)
        if form != "parquet":
            options["mode"] = "PERMISSIVE" if launch.dead_letter_topic is not None else "FAILFAST"
            if launch.dead_letter_topic is not None:
                schema = StructType([*schema.fields]).add("__corrupt", "string")
                options["columnNameOfCorruptRecord"] = "__corrupt"
        options["maxFilesPerTrigger"] = str(self.settings.max_files_per_trigger)
        return spark.readStream.format(reader_format).schema(schema).options(**options).load(where)

    def _infer(self, spark: SparkSession, reader_format: str, options: dict[str, str], where: str) -> str:
        """The columns of the files that are there, as Spark finds them."""
        from pyspark.errors import AnalysisException

        try:
            reader = spark.read.format(reader_format).options(inferSchema="true", **options)
            return reader.load(where).schema.json()
        except AnalysisException as error:
            why = error.getCondition() or str(error)
            raise ValueError(f"{self.settings.path}: no columns can be found ({why}); give the schema") from None


def alone(path: str) -> str:
    """A pattern that only this path matches: Spark streams directories and patterns, and no file.

    A directory with a filter for the name would be looked through with all that is below it: files of that name there
    would be read as well, and folders like `country=DE`, which a sink may make, be taken for columns.

    >>> alone("/data/in[1].csv")
    '/data/in\\\\[1\\\\].cs[v]'
    """
    place = next((at for at in reversed(range(len(path))) if path[at].isalnum()), None)
    if place is None:
        return GLOB.sub(r"\\\g<0>", path)
    before, after = (GLOB.sub(r"\\\g<0>", part) for part in (path[:place], path[place + 1 :]))
    return f"{before}[{path[place]}]{after}"


def _suffix(path: str) -> Form | None:
    return ENDINGS.get(Path(path.removesuffix(".gz")).suffix.lower())


def _files(path: str, recursive: bool) -> list[str]:
    """What is there now, sorted; names that begin with _ or . are not read by Spark either."""
    if "://" in path:
        return []
    where = Path(path)
    found: Iterable[Path] = [where]
    try:
        if where.is_dir():
            found = where.rglob("*") if recursive else where.iterdir()
        elif not where.exists():
            found = map(Path, glob.glob(path))
        return sorted(str(each) for each in found if each.is_file() and each.name[0] not in "_.")
    except OSError:  # no name of a file, or a directory that may not be looked into
        return []
