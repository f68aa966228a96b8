"""vLLM's OpenAI-compatible server for the job's judge: `python -m` with its options.

It applies the corrections of `engine_corrections`. The exit status distinguishes a refused
configuration, which is not retried, from other failures.
"""

import gc
import os
import sys

from ppojob_api import contract


def main() -> None:
    """Serve until it is ended."""
    gc.disable()  # imports make little garbage, and looking for it takes seconds
    import uvloop
    from vllm.entrypoints.launchers.api_server.entry import run_server
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.platforms import current_platform
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from ppojob_trainer.models.model_classes import language_config
    from ppojob_trainer.rollout import engine_corrections

    gc.freeze()
    gc.enable()
    cli_env_setup()
    args = make_arg_parser(FlexibleArgumentParser()).parse_args()
    validate_parsed_serve_args(args)
    config = language_config(args.model)
    args.hf_overrides = engine_corrections.served
    args.override_generation_config = engine_corrections.generation(config)
    if current_platform.is_cpu():
        if (operations := engine_corrections.operations(config)) is not None:
            args.compilation_config.custom_ops = operations
        args.attention_backend = engine_corrections.attention_backend(config)
        args.worker_extension_cls = "ppojob_trainer.rollout.vllm_experts.WorkerExtension"
        # No further process, which vLLM would start to bind threads to cores.
        args.distributed_executor_backend = "uni"
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    try:
        uvloop.run(run_server(args))
    except ValueError as problem:
        sys.stderr.write(f"vLLM refuses the configuration: {problem}\n")
        sys.exit(contract.EXIT_INVALID)


if __name__ == "__main__":
    main()
