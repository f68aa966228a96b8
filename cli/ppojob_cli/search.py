"""`ppojob index` and `ppojob retrieve`: a corpus that can be searched, and a service."""

import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from ppojob_cli.input_error import InputError
from ppojob_cli.options import FOLDER
from ppojob_cli.progress_lines import ProgressLines

if TYPE_CHECKING:
    from ppojob_trainer.retrieval.manifest import EncoderSettings


@click.command()
@click.argument("corpus", metavar="CORPUS", type=click.Path(path_type=Path))
@click.option("--output", required=True, type=FOLDER, metavar="DIR", help="Folder of the index.")
@click.option(
    "--kind",
    default="bm25",
    type=click.Choice(["bm25", "dense"]),
    help="bm25: by words; dense: by embeddings of an encoder.",
)
@click.option("--encoder", type=FOLDER, metavar="FOLDER", help="Sentence encoder; dense only.")
@click.option(
    "--pooling",
    type=click.Choice(["mean", "cls"]),
    help="Pooling of token vectors; default: as in the encoder's folder, else mean.",
)
@click.option(
    "--query-prefix", metavar="TEXT", help="Before each query; by the encoder's name for e5, bge."
)
@click.option(
    "--passage-prefix", metavar="TEXT", help="Before each document; by the encoder's name for e5."
)
def index(
    corpus: Path,
    output: Path,
    kind: Literal["bm25", "dense"],
    encoder: Path | None,
    **of_encoder: str | None,
) -> None:
    r"""Build a search index of a corpus.

    CORPUS is a file of JSON lines, {"id": "7", "contents": "\"Title\"\ntext"}, plain or gzip. The
    same command resumes an interrupted index.
    """
    from ppojob_trainer.retrieval.build import build_index

    lines = ProgressLines()

    def on_progress(stage: str, count: int) -> None:
        lines.show(f"{count:,} documents {stage}")

    settings = _encoder_settings(kind, encoder, of_encoder)
    try:
        made = build_index(corpus, output, encoder=settings, on_progress=on_progress)
    except KeyboardInterrupt:
        click.echo(f"{output}: interrupted; the same command resumes", err=True)
        raise
    click.echo(
        f"{output}: {made.plan.documents:,} documents, {kind}, {made.memory_bytes / 1e6:,.1f} MB"
        " in memory"
    )


@click.command()
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.option("--port", default=8000, type=click.IntRange(0, 65_535))
@click.option(
    "--address",
    default="127.0.0.1",
    metavar="IP",
    help="Address to listen on, without authentication; by default only this machine.",
)
@click.option(
    "--topk",
    default=3,
    type=click.IntRange(1, 1_000),
    help="Passages per query if a request has no topk.",
)
@click.option(
    "--encoder",
    type=FOLDER,
    metavar="FOLDER",
    help="Folder of a dense index's encoder, if it was moved.",
)
def retrieve(folder: Path, port: int, address: str, topk: int, encoder: Path | None) -> None:
    """Serve an index over HTTP, as Search-R1 does.

    DIR is a folder that `ppojob index` has written. A query is a POST to /retrieve. Ctrl-C ends
    the service.
    """
    from ppojob_trainer.retrieval.http_server import retrieve_server
    from ppojob_trainer.retrieval.index import open_index

    retriever = open_index(folder, encoder)
    with retriever:
        try:
            server = retrieve_server(retriever, address, port, topk=topk)
        except OSError as error:
            why = f"got {address}:{port}: {error.strerror or error}"
            raise InputError(f"--port: {why}; a free port and an own address") from None
        with closing(server):
            server.start()
            click.echo(f"http://{address}:{server.port}/retrieve: {folder}")
            sys.stdout.flush()
            threading.Event().wait()


def _encoder_settings(
    kind: str, encoder: Path | None, given: dict[str, str | None]
) -> "EncoderSettings | None":
    options = {name: value for name, value in given.items() if value is not None}
    if kind == "dense":
        if encoder is None:
            raise InputError(
                "--encoder: got nothing: a dense index needs one; the folder of a sentence encoder"
            )
        from ppojob_trainer.retrieval.encoder import encoder_settings

        return encoder_settings(encoder, **options)  # type: ignore[arg-type]  # click checks it
    unused = [*(["encoder"] if encoder is not None else []), *options]
    if unused:
        name = unused[0].replace("_", "-")
        raise InputError(f"--{name}: got --kind {kind}: it has no vectors; --kind dense, or none")
    return None
