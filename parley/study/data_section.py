"""The section [data] of a study: a registered data set with its loading options, or the user's own folder or file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from parley.core.errors import InputError
from parley.core.fields import Setting, options_of, settings_of
from parley.core.text import shown
from parley.data import IID, Federation, Partitioner, datasets, partitioners
from parley.data.local.images import holds_images
from parley.study.sections import check, checked, choose, located, plain

Share = Annotated[float, Field(ge=0, lt=1)]
Pixels = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class DataSection:
    """Samples and how they are divided among clients."""

    name: str | None = None
    """A data set (`parley list data`); its loading options may follow."""
    folder: str | None = None
    """In place of name: a folder with a .csv, .parquet, .npz or .safetensors file per client, or a folder of images by
    class per client; relative to the study file."""
    file: str | None = None
    """In place of name: one .csv or .parquet file with the samples of all clients; relative to the study file."""
    client: str | None = None
    """With file: the column with each row's client."""
    target: str | None = None
    """With folder or file: the column of the tables to predict; in a folder by default the last one."""
    kind: Literal["classification", "regression"] | None = None
    """With folder or file: kind of the targets; by default whole numbers and texts are classes."""
    dtype: Literal["float32", "float64"] | None = None
    """With folder or file: precision of inputs; by default arrays keep theirs (integers are token ids), and tables
    are float32, or refused if that is too coarse for a column."""
    missing: bool = False
    """With folder or file: empty cells and NaN are missing values, which boosted trees take."""
    categories: tuple[str, ...] = ()
    """With folder or file: columns of texts, or of numbers that are names; encoded by [preprocessing]."""
    dates: tuple[str, ...] = ()
    """With folder or file: columns of dates or times, YYYY-MM-DD, read as days since 1970-01-01; encoded by
    [preprocessing]."""
    on_error: Literal["refuse", "skip"] = "refuse"
    """With folder or file: unreadable rows are refused, or skipped, counted and listed."""
    grey: bool = False
    """With a folder of images: one channel in place of three."""
    size: Pixels | tuple[Pixels, Pixels] | None = None
    """With a folder of images: resize them to this height and width; by default all must have the same."""
    clients: Annotated[int, Field(ge=1)] | None = None
    """Number of clients; natural partitions use all groups by default."""
    test_fraction: Share = 0.0
    """Share of each client's samples, and of each of its classes, held out for its own evaluation."""
    public_fraction: Share = 0.0
    """Share of the samples set aside as public inputs without labels (for methods that distil)."""
    public: str | None = None
    """In place of public_fraction: a data set with training inputs of the same shape."""
    standardise: bool = False
    """Bring inputs to mean 0 and deviation 1 per column by statistics of all clients' training samples."""
    seed: int | None = None
    """Seed of the partition; by default the study's seed."""
    partition: Partitioner = field(default_factory=IID)
    """[data.partition]: the partitioner and its settings; by default iid."""
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return self.name or (Path(self.file).stem if self.file else Path(self.folder or "data").name)

    def load(self, study_seed: int) -> Federation:
        """Build the federation."""
        seed = study_seed if self.seed is None else self.seed
        try:
            federation = self._named(seed) if self.name is not None else self._own(seed)
            return federation.standardised() if self.standardise else federation
        except InputError as error:
            raise located(error, "data") from None

    def _named(self, seed: int) -> Federation:
        renamed = {_RENAMED.get(key, key): value for key, value in self.options.items()}
        pooled = datasets[self.name or ""](**renamed)
        federation = pooled.split(self.partition, self.clients, seed, self.test_fraction, self.public_fraction)
        return federation if self.public is None else federation.with_public(datasets[self.public]().x)

    def _own(self, seed: int) -> Federation:
        how: dict[str, Any] = {"kind": self.kind, "missing": self.missing, "categories": self.categories}
        how |= {"dates": self.dates} | ({"on_error": "skip"} if self.on_error == "skip" else {})
        held_out: dict[str, Any] = {"test_fraction": self.test_fraction, "seed": seed}
        if self.file is not None:
            assert self.client is not None
            assert self.target is not None
            return Federation.from_frame(
                Path(self.file), client=self.client, target=self.target, dtype=self.dtype, **how, **held_out
            )
        folder = Path(self.folder or "")
        of_tables: dict[str, Any] = {"target": self.target, "dtype": self.dtype, **how}
        of_images: dict[str, Any] = {"grey": self.grey, "size": self.size}
        images = holds_images(folder)
        if (
            odd := next((name for name, value in (of_tables if images else of_images).items() if value), None)
        ) is not None:
            what = "tables and arrays, but '{}' holds images" if images else "images, but '{}' holds none"
            raise InputError(f"{odd} is a setting of {what.format(shown(folder.name))}.")
        if images:
            return Federation.from_image_folders(folder, **of_images, **held_out)
        return Federation.from_folder(folder, **of_tables, **held_out)

    def plain(self, study_seed: int) -> dict[str, Any]:
        """As plain JSON, with the seed and all options spelled out."""
        seed = study_seed if self.seed is None else self.seed
        if self.name is None:
            source = ("folder",) if self.file is None else ("file", "client")
            names = (*source, "target", "kind", "dtype", "test_fraction", "standardise")
            others = ("missing", "categories", "dates", "grey", "size")
            rare = {name: plain(value) for name in others if (value := getattr(self, name))}
            rare |= {"on_error": self.on_error} if self.on_error != "refuse" else {}
            return {name: getattr(self, name) for name in names} | rare | {"seed": seed}
        options = {s.name: plain(self.options.get(s.name, s.default)) for s in loader_settings(self.name or "")}
        partition = {"name": partitioners.name_of(type(self.partition)), **plain(self.partition)}
        return {
            "name": self.name,
            **options,
            "clients": self.clients,
            "test_fraction": self.test_fraction,
            "public_fraction": self.public_fraction,
            **({} if self.public is None else {"public": self.public}),
            "standardise": self.standardise,
            "seed": seed,
            "partition": partition,
        }


# A loading function's own test_fraction is the share of the central test set; in [data] that name is the clients'.
_RENAMED = {"central_fraction": "test_fraction"}
_OPTION_DOCS = {
    "central_fraction": "Share of all samples that becomes the central test set.",
    "verify": "Check the files against their known checksums.",
}


Origin = Literal["name", "folder", "file"]
_OF_NAMES = {"name", "clients", "public_fraction", "public", "partition"}
_OF_IMAGES = {"grey", "size"}
_LEFT_OUT: dict[Origin, set[str]] = {
    "name": {
        "folder",
        "file",
        "client",
        "target",
        "kind",
        "dtype",
        "missing",
        "categories",
        "dates",
        "on_error",
        *_OF_IMAGES,
    },
    "folder": {"file", "client", *_OF_NAMES},
    "file": {"folder", *_OF_IMAGES, *_OF_NAMES},
}


def own_settings(origin: Origin) -> list[Setting]:
    """The settings of [data] itself, with a data set's name, with a folder or with a file."""
    return [s for s in settings_of(DataSection) if s.name != "options" and s.name not in _LEFT_OUT[origin]]


def loader_settings(name: str) -> list[Setting]:
    """The loading options of a data set, as they are called in [data]."""
    back = {option: shown for shown, option in _RENAMED.items()}
    return [
        Setting(
            shown := back.get(option.name, option.name),
            Share if shown in _RENAMED else option.hint,
            option.default,
            note=_OPTION_DOCS.get(shown, ""),
        )
        for option in options_of(datasets[name].load)
    ]


def data_from_table(table: dict[str, Any], base: Path) -> DataSection:
    """The checked section; a relative folder or file is looked for under `base`."""
    given: list[Origin] = [origin for origin in _LEFT_OUT if table.get(origin) is not None]
    if len(given) != 1:
        raise InputError(
            "[data] needs one of name, a data set that Parley knows, folder, one file per client, and file, one table "
            "with a column of clients."
        )
    (origin,) = given
    if origin != "name":
        values = checked(own_settings(origin), table, "data", f"[data] with a {origin}")
        for column in ("client", "target") if origin == "file" else ():
            if values.get(column) is None:
                raise InputError(f"data.{column} is missing: [data] with a file needs the columns client and target.")
        return DataSection(**values | {origin: str((base / values[origin]).resolve())})
    name = check(str, table["name"], "data.name")
    if table.get("public") is not None and table.get("public_fraction"):
        raise InputError("[data] has both public and public_fraction; keep one of them.")
    loading = loader_settings(name)
    known = own_settings("name")
    rest = {key: value for key, value in table.items() if key != "partition"}
    values = checked([*known, *loading], rest, "data", f"[data] with data set '{name}'")
    chosen: dict[str, Any] = {}
    if "partition" in table:
        chosen["partition"] = choose(partitioners, table["partition"], "data.partition")
    options = {s.name: values.pop(s.name) for s in loading if s.name in values}
    return DataSection(**values, **chosen, options=options)
