"""The stage: sources -> prepared rows in the cache, with a manifest in the run folder."""

from typing import Any

from pipeline.config import RunConfig
from pipeline.files import write_json
from pipeline.prepare.cache import REJECTS, PreparedData, Writer, load, publish
from pipeline.prepare.duplicates import without_duplicates
from pipeline.prepare.fingerprints import columns_for
from pipeline.prepare.manifest import Tally, check_loss, counted, reasons
from pipeline.prepare.preparation import Preparation
from pipeline.prepare.shares import Shares
from pipeline.run_folder import RunFolder
from pipeline.share import Share


def prepare(config: RunConfig, folder: RunFolder, processes: int = 1) -> PreparedData:
    """Prepare the run's data, or find them in the cache. Where all shares of some number lie there, they are joined.

    Args:
        processes: that share the work on this machine; the rows are the same bit for bit.

    Returns:
        Rows in the order of the sources; a row that can't be used is counted in `.manifest` and listed in
        rejects.jsonl beside the rows.

    Raises:
        UserError: a source, its form, its columns or the tokenizer can't be used, or no row is left.
        StageError: more rows than `data.max_dropped_percent` are lost, or the cache can't be written.
    """
    prepared = obtain(config, folder, processes)
    assert config.data is not None
    check_loss(prepared.manifest, config.data.max_dropped_percent, prepared.path / REJECTS)
    return prepared


def obtain(config: RunConfig, folder: RunFolder, processes: int = 1) -> PreparedData:
    """The same, however few rows are left."""
    preparation = Preparation.of(config)
    path, console = preparation.path, preparation.console
    prepared, reused = load(path), True
    if prepared is None:
        prepared, reused = publish(path, lambda writer: _write(preparation, writer, processes), console.print)
        Shares(path).remove()
    paths = {source.label: source.config.path for source in preparation.sources}
    skipped = {source.label: source.skipped for source in preparation.sources if source.skipped}
    write_json(folder.prepare_manifest, {**prepared.manifest, "paths": paths, "skipped": skipped})
    for label, names in skipped.items():
        console.print(f"prepare: {paths[label]}: not read, the ending tells no form: {', '.join(names)}")
    console.print(_summary(prepared, reused))
    return prepared


def prepare_share(config: RunConfig, folder: RunFolder, share: Share, processes: int = 1) -> list[str]:
    """Prepare one share of the rows beside processes that prepare the others; the last one joins them.

    Returns:
        What must wait for other shares: the rows, or nothing.

    Raises:
        UserError, StageError: as `prepare`.
    """
    preparation = Preparation.of(config)
    shares = Shares(preparation.path)
    if load(preparation.path) is None and not shares.has(share):
        opened = preparation.opened()
        shares.write(share, preparation.pieces(opened, processes, share))
    missing = [] if load(preparation.path) else shares.missing(share.count)
    if missing:
        return ["the prepared rows"]
    prepare(config, folder, processes)
    return []


def _write(preparation: Preparation, writer: Writer, processes: int) -> dict[str, Any]:
    """Put all rows into the writer; the manifest of what was put."""
    opened = preparation.opened()
    shares = Shares(preparation.path)
    count = shares.complete()
    tally = Tally()
    pieces = shares.pieces(count) if count else preparation.pieces(opened, processes)
    duplicates = preparation.data.filters.duplicates
    if columns_for(duplicates):
        pieces = without_duplicates(pieces, writer.folder / "duplicates", duplicates)
    for piece in pieces:
        writer.put(piece)
        tally.add(piece)
    return {**preparation.facts(opened), **tally.as_dict()}


def _summary(prepared: PreparedData, reused: bool) -> str:
    rows, tokens = prepared.manifest["rows"], prepared.manifest["tokens"]
    lost = f", {rows['rejected']} rejected, {rows['dropped']} dropped" if rows["read"] > rows["kept"] else ""
    if lost and not reused:
        lost += f" ({reasons(prepared.manifest)}; all in {prepared.path / REJECTS})"
    ended_early = prepared.manifest["ended_early"].items()
    if ended_early:
        lost += f", files that can't be read to their end: {counted(ended_early)}"
    overlaps = prepared.manifest["overlaps"].items()
    if overlaps:
        lost += f", overlapping evaluation sets: {counted(overlaps)}"
    forms = ", ".join(sorted({source["form"] for source in prepared.manifest["sources"]}))
    return (
        f"prepare: {rows['kept']} of {rows['read']} rows kept{lost} ({forms}); {tokens['total']} tokens, "
        f"{tokens['answer']} of them answer; {'reused from' if reused else 'written to'} {prepared.path}"
    )
