"""``pymllm config``: print the composed, typed configuration as YAML."""

from __future__ import annotations

import argparse
import sys

from pymllm.cli.common import add_config_arguments, compose_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """[CONFIG] [key=value ...] [--show-secrets]"""
    add_config_arguments(parser, required=True)
    parser.add_argument(
        "--show-secrets", action="store_true", help="print server.api_key itself, not ${oc.env:PYMLLM_API_KEY}"
    )


def execute(args: argparse.Namespace) -> int:
    """Raises ConfigError and PluginError."""
    from pymllm.compose import to_yaml

    sys.stdout.write(to_yaml(compose_arguments(args), secrets=args.show_secrets))
    return 0
