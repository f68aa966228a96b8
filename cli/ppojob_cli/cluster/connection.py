"""Client of the user's cluster, configured as kubectl; the only module that loads the library.

The library reads kubeconfigs (contexts, certificates, log-in programs) and keeps the pool of
connections. Objects stay plain JSON, for the operator's own readers. Loading it takes most of a
second, so it is loaded at the first request.
"""

import datetime
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from ppojob_cli.input_error import InputError
from ppojob_operator.errors import UnavailableError, error_of, message_of

if TYPE_CHECKING:
    from kubernetes.client import ApiClient  # noqa: TID251
    from urllib3 import BaseHTTPResponse

    from ppojob_operator.state import Manifest, Time

_CONNECT_SECONDS: Final = 10.0
_READ_SECONDS: Final = 30.0
_CONNECTIONS: Final = 512
_PAGE: Final = "500"


class LineStream:
    """The lines of a response, as they arrive."""

    def __init__(self, response: "BaseHTTPResponse", host: str) -> None:
        self._response = response
        self._host = host

    def __iter__(self) -> Iterator[str]:
        """Yield lines without their ends; an `UnavailableError` if the connection breaks."""
        with _broken_is_no_answer(self._host):
            try:
                for line in self._response:
                    yield line.removesuffix(b"\n").decode("utf-8", "replace")
            finally:
                self._response.close()

    def stop(self) -> None:
        """End the lines from another thread."""
        # Without a socket, they have already ended.
        with suppress(OSError, ValueError, RuntimeError):
            self._response.shutdown()


class ClusterConnection:
    """An API server and a namespace.

    Every method raises a `ClusterError` if an object does not exist, access is denied, or there is
    no answer.
    """

    def __init__(self, api: "ApiClient", namespace: str) -> None:
        self.namespace = namespace
        self._api = api
        self._host: str = api.configuration.host
        self._heard = datetime.datetime.now(datetime.UTC), time.monotonic()

    @property
    def now(self) -> "Time":
        """The API server's time, so that ages do not depend on the local clock."""
        then, at = self._heard
        return then + datetime.timedelta(seconds=time.monotonic() - at)

    def get(self, path: str, **query: str) -> "Manifest":
        return self._json(self._request("GET", path, query))

    def items(self, path: str, **query: str) -> "Iterator[Manifest]":
        """Yield all objects of a list, page by page."""
        query = {"limit": _PAGE, **query}
        while True:
            answer = self.get(path, **query)
            yield from answer.get("items") or ()
            token = answer["metadata"].get("continue")
            if not token:
                return
            query["continue"] = token

    def patch(self, path: str, change: "Manifest") -> "Manifest":
        """Merge a change into an object."""
        query = {"fieldManager": "kubectl-ppojob"}
        return self._json(self._request("PATCH", path, query, json.dumps(change).encode()))

    def text(self, path: str, *, seconds: float = _READ_SECONDS) -> str:
        """Get a text, such as a page that a pod serves."""
        return self._text(self._request("GET", path, {}, read_seconds=seconds))

    def lines(self, path: str, *, endless: bool = False, **query: str) -> LineStream:
        """Get a text line by line; an endless one has no time limit."""
        seconds = None if endless else _READ_SECONDS
        return LineStream(self._request("GET", path, query, read_seconds=seconds), self._host)

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: bytes | None = None,
        read_seconds: float | None = _READ_SECONDS,
    ) -> "BaseHTTPResponse":
        from urllib3 import Timeout

        headers = {"Accept": "application/json, */*"}
        if body is not None:
            headers["Content-Type"] = "application/merge-patch+json"
        self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        with _broken_is_no_answer(self._host):
            answer = self._api.rest_client.pool_manager.request(
                method,
                f"{self._host}{path}" + (f"?{urlencode(query)}" if query else ""),
                body=body,
                headers=headers,
                preload_content=False,
                retries=False,
                timeout=Timeout(connect=_CONNECT_SECONDS, read=read_seconds),
            )
        if "Date" in answer.headers:
            self._heard = parsedate_to_datetime(answer.headers["Date"]), time.monotonic()
        if answer.status >= 300:
            raise error_of(answer.status, message_of(self._text(answer)))
        return answer

    def _text(self, answer: "BaseHTTPResponse") -> str:
        with _broken_is_no_answer(self._host):
            try:
                return answer.read().decode("utf-8", "replace")
            finally:
                answer.release_conn()

    def _json(self, answer: "BaseHTTPResponse") -> dict[str, Any]:
        try:
            read: dict[str, Any] = json.loads(self._text(answer))
        except ValueError as problem:
            raise _no_answer(self._host, "it is not an API server") from problem
        return read


def _no_answer(host: str, why: str) -> UnavailableError:
    return UnavailableError(
        f"cluster: got no answer from {host}: {why}; "
        "an API server that can be reached, see kubectl cluster-info"
    )


@contextmanager
def _broken_is_no_answer(host: str) -> Iterator[None]:
    from urllib3.exceptions import HTTPError

    try:
        yield
    except HTTPError as problem:
        # The last part of a nested message names the cause.
        why = str(problem).rpartition(": ")[2].rstrip(".") or type(problem).__name__
        raise _no_answer(host, why) from problem


def _trust_as_kubectl(api: "ApiClient") -> None:
    from ppojob_operator.connection import trust

    given = api.configuration
    tls = trust(given.ssl_ca_cert)
    if given.cert_file:
        tls.load_cert_chain(given.cert_file, given.key_file)
    # Loaded once: the connections share these settings, and may not change them while others run.
    files = dict.fromkeys(("ca_certs", "ca_cert_data", "cert_file", "key_file"))
    api.rest_client.pool_manager.connection_pool_kw |= {**files, "ssl_context": tls}


def connect(
    context: str | None, namespace: str | None, kubeconfig: str | None = None
) -> ClusterConnection:
    """Connect to the cluster of a kubeconfig.

    Defaults: the current context, the namespace of the context, and the file of `KUBECONFIG`, or
    `~/.kube/config`.
    """
    from kubernetes import client, config  # noqa: TID251
    from yaml import YAMLError  # type: ignore[import-untyped]

    # The library reads the variable only when it is loaded, and does not ignore an empty one.
    file = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
    configuration = client.Configuration()
    configuration.connection_pool_maxsize = _CONNECTIONS
    try:
        contexts, current = config.list_kube_config_contexts(file)  # type: ignore[no-untyped-call]
        by_name = {one["name"]: one for one in contexts}
        if context is not None and context not in by_name:
            raise InputError(
                f'--context: got "{context}": the kubeconfig has no such context; '
                f"one of {', '.join(sorted(by_name))}"
            )
        chosen = by_name[context] if context is not None else current
        config.load_kube_config(  # type: ignore[no-untyped-call]
            file, context=context, client_configuration=configuration
        )
        api = client.ApiClient(configuration)
        if configuration.verify_ssl:
            _trust_as_kubectl(api)
    except (
        config.ConfigException,
        YAMLError,
        OSError,
        ValueError,
        TypeError,
        KeyError,
    ) as problem:
        why = (str(problem).splitlines() or [type(problem).__name__])[0].rstrip(".")
        raise InputError(
            f"kubeconfig: got {file}: {why}; "
            "a file with which kubectl works, by --kubeconfig or KUBECONFIG; "
            "`ppojob run` keeps logs and status in its run folder"
        ) from problem
    default = chosen["context"].get("namespace") or "default"
    return ClusterConnection(api, namespace or default)
