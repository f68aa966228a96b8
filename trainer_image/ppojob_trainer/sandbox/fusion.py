"""Code of responses in a SandboxFusion service, by its HTTP interface (``/run_code``).

The service is responsible for isolation. As in our own sandbox, it never gets expected values: it
returns what a program printed, or the return value of a function, which is compared here.
https://github.com/bytedance/SandboxFusion
"""

import secrets

from ppojob_trainer.http_calls import RETRIES, CallFailed, post_json
from ppojob_trainer.json_value import Json
from ppojob_trainer.sandbox.inside import NOT_PYTHON
from ppojob_trainer.sandbox.process import Limits, Outcome, Program, after_nonce

ANSWER_SECONDS = 20.0
"""Time limit of an answer in addition to its program's: for the network, and a queue."""

_WRAPPER = """
import json, os, sys
from types import ModuleType

message = {message!r}
module = ModuleType("solution" if message["function"] else "__main__")
sys.modules[module.__name__] = module
module.__dict__.update(exit=sys.exit, quit=sys.exit)
exec(message["prelude"], module.__dict__)
try:
    code = compile(message["code"], "<response>", "exec", dont_inherit=True)
except (SyntaxError, ValueError, RecursionError, MemoryError):
    os._exit({not_python})
if message["function"]:
    arguments = json.loads(message["arguments"])
    if message["integer_keys"]:
        arguments[0] = {{int(key): value for key, value in arguments[0].items()}}
    exec(code, module.__dict__)
    value = eval(message["function"], module.__dict__)(*arguments)
    print()
    print(message["nonce"] + json.dumps(value))
else:
    try:
        exec(code, module.__dict__)
    except SystemExit:
        pass
"""


class FusionSandbox:
    """Runs programs in a SandboxFusion service."""

    def __init__(self, url: str, limits: Limits) -> None:
        self._url = url
        self._limits = limits
        self.description = f"sandbox: the service at {url}"

    def run(self, program: Program) -> Outcome:
        """Run a program until it ends or exceeds a limit; raises CallFailed without a result."""
        nonce = secrets.token_hex(16)
        answer = post_json(
            self._url,
            {
                "language": "python",
                "code": _WRAPPER.format(message=program.message(nonce), not_python=NOT_PYTHON),
                "stdin": program.stdin,
                "compile_timeout": self._limits.seconds,
                "run_timeout": self._limits.seconds,
                "memory_limit_MB": self._limits.memory_bytes >> 20,
                "files": {},
                "fetch_files": [],
            },
            retries=RETRIES,
            attempt_seconds=self._limits.seconds + ANSWER_SECONDS,
        )
        return self._outcome(answer, nonce)

    def _outcome(self, answer: Json, nonce: str) -> Outcome:
        fields = answer if isinstance(answer, dict) else {}
        result = fields.get("run_result")
        if fields.get("status") not in ("Success", "Failed") or not isinstance(result, dict):
            error = f"{fields.get('status')}: {fields.get('message')}"[:200]
            raise CallFailed(f"{self._url} ran nothing: {error}")
        code, printed = result.get("return_code"), str(result.get("stdout") or "")
        status = code if isinstance(code, int) else -1
        if result.get("status") != "Finished":
            status = status or -1
        last = (printed.splitlines() or [""])[-1].encode(errors="surrogatepass")
        return Outcome(
            stdout=printed.encode(errors="surrogatepass"),
            answer=after_nonce(last, nonce),
            errors=str(result.get("stderr") or "").encode(errors="surrogatepass"),
            status=status,
            stopped="time" if result.get("status") == "TimeLimitExceeded" else "",
        )
