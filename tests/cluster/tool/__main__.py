"""A Kubernetes node on this machine, `python3 tests/cluster/tool up`, by Python's library alone."""

import argparse
import fcntl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import images
import machine
import node
import programs
from machine import ClusterError
from places import Places

REPOSITORY = Path(__file__).resolve().parents[3]


def main() -> int:
    """Run one command; answers the exit status (2: the machine or the input will not do)."""
    arguments = _parser().parse_args()
    places = Places(REPOSITORY / ".cluster")
    command: Callable[[Places, argparse.Namespace], None] = arguments.run
    try:
        machine.require_root()
        with _alone(places):
            command(places, arguments)
    except ClusterError as problem:
        print(f"cluster: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("cluster: interrupted", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tests/cluster/tool", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: Callable[[Places, argparse.Namespace], None], text: str) -> None:
        commands.add_parser(name, help=text).set_defaults(run=run)

    add("build", lambda places, _: programs.build(places), "build every program into .cluster/")
    up = commands.add_parser("up", help="build what is missing and bring the node to Ready")
    up.add_argument(
        "--fake-node",
        action="store_true",
        help="let kwok play the node: all of Kubernetes but containers that run, built in half "
        "the time; a node that runs containers, and is up, does too",
    )
    up.set_defaults(run=lambda places, given: node.up(places, containers=not given.fake_node))
    placing = commands.add_parser(
        "placing", help="build one that places pods, which no node needs; prints the folder"
    )
    placing.add_argument("name", choices=[one.name for one in programs.PLACING])
    placing.set_defaults(
        run=lambda places, given: print(programs.build_placing(places, given.name))
    )
    add("down", lambda places, _: node.down(places), "end the node; only what is cached stays")

    image = commands.add_parser("image", help="make images without a registry")
    actions = image.add_subparsers(required=True, metavar="ACTION")
    base = actions.add_parser("base", help="make the Debian base image; prints its archive")
    base.set_defaults(run=lambda places, _: print(images.base(places)))
    build = actions.add_parser("build", help="build a target of ./Dockerfile; prints its layout")
    build.add_argument("target")
    build.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    build.set_defaults(
        run=lambda places, given: print(images.build(places, given.target, given.build_arg))
    )
    load = actions.add_parser("import", help="bring a built target into the node; prints its name")
    load.add_argument("target")
    load.set_defaults(run=lambda places, given: print(images.load(places, given.target)))
    return parser


@contextmanager
def _alone(places: Places) -> Iterator[None]:
    """Two commands at once wait for each other."""
    places.root.mkdir(exist_ok=True)
    with places.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main())
