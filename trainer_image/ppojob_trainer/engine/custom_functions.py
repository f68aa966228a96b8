"""Custom estimators and policy losses: functions from a user's Python file (ADR 69).

A file is loaded once per process. Its functions are called as the built-in ones, and their results
are checked, so a mistake ends the job with the function's name and line.
"""

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn

import msgspec
import torch
from torch import Tensor

from ppojob_api.contract import source_field
from ppojob_api.v1alpha1.algorithm import AlgorithmSpec
from ppojob_api.v1alpha1.policy_loss import CustomSpec, PolicyLossSpec
from ppojob_trainer.algorithms.advantages import Advantages
from ppojob_trainer.algorithms.masked import zero_outside
from ppojob_trainer.algorithms.policy_losses.inputs import (
    LossInputs,
    LossOutput,
    PolicyLoss,
    bounded,
)
from ppojob_trainer.algorithms.policy_losses.table import POLICY_LOSSES
from ppojob_trainer.children.user_code import ImportFolder, load_module, raised
from ppojob_trainer.errors import BadInput, ConfigError, CustomCodeFailed
from ppojob_trainer.metrics.names import CUSTOM_PREFIX

_ESTIMATOR: Final = "spec.algorithm.custom"
_LOSS: Final = "spec.algorithm.policyLoss.custom"
_KL: Final = "actor/ppo_kl"
_OF_TOKENS: Final = "token_rewards, mask, lengths, groups"
_FORMS: Final = {_ESTIMATOR: f"({_OF_TOKENS}, **arguments)", _LOSS: "(inputs, **arguments)"}
_KNOWN: Final = frozenset(name for loss in POLICY_LOSSES.values() for name in loss.metrics)
_COPIED: Final = ("old_logprobs", "rollout_logprobs", "advantages", "mask", "lengths", "groups")
"""Inputs of a loss without gradient; copied, as a function may write into them."""
_NUMBERS: Final = ("logprobs", "old_logprobs", "rollout_logprobs", "advantages")
_folders: Final = ImportFolder()


def estimator_of(spec: CustomSpec) -> Callable[..., Advantages]:
    """Return the job's custom estimator, called as those of `ADVANTAGES`, with `kept`."""
    called = _Called(_ESTIMATOR, spec, _function(_ESTIMATOR, spec))
    takes_kept = "kept" in inspect.signature(called.function).parameters
    called.check(*_OF_TOKENS.split(", "), **({"kept": None} if takes_kept else {}))

    @torch.no_grad()
    def estimate(*columns: Tensor, kept: Tensor, **arguments: object) -> Advantages:
        rewards = columns[0]
        with called.guarded():
            found = called.function(
                *(column.clone() for column in columns),
                **({"kept": kept.clone()} if takes_kept else {}),
                **deepcopy(arguments),
            )
        if isinstance(found, Advantages):
            found = (found.advantages, found.returns)
        both = found if isinstance(found, tuple) else (found, found)
        if len(both) != 2:
            called.fail(f"a tuple of {len(both)}", "advantages, or advantages and returns")
        named = zip(("advantages", "returns"), both, strict=True)
        is_finite = bool(rewards.isfinite().all())
        values = [called.column(name, one, rewards, kept, is_finite) for name, one in named]
        return Advantages(*values)

    return estimate


@cache
def _loss_of(settings: str) -> PolicyLoss:
    where, spec = _LOSS, CustomSpec.model_validate_json(settings)
    given = _function(where, spec)
    plain = given if isinstance(given, PolicyLoss) else PolicyLoss(given, (_KL,))
    called = _Called(where, spec, plain.compute)
    called.check("inputs")
    for name in plain.metrics:
        own = name.removeprefix(CUSTOM_PREFIX)
        if name not in _KNOWN and (own == name or not own.isidentifier()):
            raise ConfigError(
                f"{where}.function: got {spec.function} with metric {name}: no such metric; "
                f"{CUSTOM_PREFIX}NAME, or one of {', '.join(sorted(_KNOWN))}"
            )

    def compute(inputs: LossInputs, **arguments: object) -> LossOutput:
        copies = {name: getattr(inputs, name).clone() for name in _COPIED}
        # A masked token may hold any number: 0 times its gradient must not become NaN.
        copies["logprobs"] = inputs.trained(inputs.logprobs)
        with called.guarded():
            found = called.function(replace(inputs, **copies), **deepcopy(arguments))
        if isinstance(found, Tensor):
            found = LossOutput(found, {_KL: -bounded(inputs.log_ratio()).detach()})
        if not isinstance(found, LossOutput):
            called.fail(type(found).__name__, "a tensor, or a LossOutput")
        if found.metrics.keys() != set(plain.metrics):
            names = ", ".join(plain.metrics) or "none"
            allowed = f"its declared ones: {names}; a PolicyLoss declares others"
            called.fail(f"metrics {', '.join(found.metrics) or 'none'}", allowed)
        given = (inputs.trained(getattr(inputs, name)) for name in _NUMBERS)
        is_finite = all(bool(column.isfinite().all()) for column in given)
        mask = inputs.mask
        loss = called.column("loss", found.loss, inputs.logprobs, mask, is_finite)
        if inputs.logprobs.requires_grad and not loss.requires_grad:
            called.fail("a loss without a gradient", "one computed from inputs.logprobs")
        return LossOutput(
            loss,
            {
                name: called.column(name, one, inputs.logprobs, mask, is_finite).detach()
                for name, one in found.metrics.items()
            },
        )

    return replace(plain, compute=compute)


def policy_loss_of(spec: PolicyLossSpec) -> PolicyLoss:
    """Return the job's policy loss: a row of `POLICY_LOSSES`, or its custom one."""
    if spec.custom is None:
        return POLICY_LOSSES[spec.type]
    return _loss_of(spec.custom.model_dump_json())


def check(algorithm: AlgorithmSpec) -> None:
    """Load the custom functions of a job; raises ConfigError with a line for each problem."""
    problems: list[str] = []
    for load in (
        lambda: algorithm.custom and estimator_of(algorithm.custom),
        lambda: policy_loss_of(algorithm.policy_loss),
    ):
        try:
            load()
        except ConfigError as wrong:
            problems += wrong.problems
    if problems:
        raise ConfigError(problems)


@dataclass(frozen=True)
class _Called:
    """A custom function, with its name in messages."""

    where: str
    spec: CustomSpec
    function: Callable[..., Any]

    @property
    def place(self) -> str:
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        place = f"{code.co_filename}:{code.co_firstlineno}" if code else self.spec.source.file
        return f"{place} {self.spec.function}"

    def check(self, *columns: str, **named: object) -> None:
        signature = inspect.signature(self.function)
        try:
            if taken := self.spec.arguments.keys() & {*columns, "kept"}:
                raise TypeError(f"{min(taken)} is set by the caller")
            signature.bind(*columns, **named, **self.spec.arguments)
        except TypeError as error:
            given = ", ".join(map(repr, self.spec.arguments)) or "no arguments"
            raise ConfigError(
                f"{self.where}.arguments: got {given}: {self.place}{signature} cannot be called "
                f"with them: {error}; def {self.spec.function}{_FORMS[self.where]}"
            ) from None

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Convert an exception of the function into an error that names its place."""
        _set_import_folder(self.spec)
        try:
            yield
        except Exception as error:
            text, where = raised(error, __file__)
            raise CustomCodeFailed(
                f"{self.where}: got {text}: {self.place}: {where}; a function that does not raise"
            ) from None

    def fail(self, got: str, allowed: str) -> NoReturn:
        raise CustomCodeFailed(f"{self.where}: got {got}: {self.place} returned it; {allowed}")

    def column(
        self, name: str, value: object, like: Tensor, mask: Tensor, is_finite: bool
    ) -> Tensor:
        """Check a per-token result of the function, and set masked tokens to 0."""
        wanted = f"({like.numel()},) floating-point numbers on {like.device.type}"
        if not isinstance(value, Tensor):
            self.fail(f"{name} {type(value).__name__}", f"a tensor of {wanted}")
        if (
            value.shape != like.shape
            or value.device != like.device
            or not value.is_floating_point()
        ):
            kind = f"{str(value.dtype).removeprefix('torch.')} on {value.device.type}"
            self.fail(f"{name} {tuple(value.shape)} of {kind}", wanted)
        value = zero_outside(value, mask).to(like.dtype)
        if is_finite and not value.isfinite().all():
            token = int((~value.isfinite()).nonzero()[0, 0])
            self.fail(f"{name} {value[token].item()} at token {token}", "finite numbers")
        return value


def _set_import_folder(spec: CustomSpec) -> None:
    _folders.enter(str(Path(spec.source.file or "").resolve().parent))


@cache
def _module(path: str) -> ModuleType:
    return load_module(path, f"ppojob_custom_{Path(path).stem}", pod="actorRollout")


def _function(where: str, spec: CustomSpec) -> Any:
    path, name = spec.source.file or "", spec.function
    _set_import_folder(spec)
    try:
        module = _module(path)
    except BadInput as bad:
        raise ConfigError(f"{where}.{source_field(path)}: {bad}") from None
    found = vars(module).get(name)
    if inspect.isfunction(found) or (where == _LOSS and isinstance(found, PolicyLoss)):
        return found
    names = sorted(
        key
        for key, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
    )
    allowed = f"one of {', '.join(names)}" if names else f"def {name}{_FORMS[where]}"
    raise ConfigError(f"{where}.function: got {name}: {path} has no such function; {allowed}")


def main() -> None:
    """Check the `algorithm` section on standard input; print the problems as the last line."""
    problems: list[str] = []
    try:
        check(AlgorithmSpec.model_validate_json(sys.stdin.buffer.read()))
    except ConfigError as wrong:
        problems += wrong.problems
    sys.stdout.write(f"\n{msgspec.json.encode(problems).decode()}\n")


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # discard what the file prints at exit
