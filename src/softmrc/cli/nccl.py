"""`softmrc nccl-plugin`: what NCCL_NET_PLUGIN is set to."""

from __future__ import annotations

from softmrc.nccl import plugin_path


def nccl_plugin() -> None:
    """Print the path of the NCCL network plugin."""
    print(plugin_path())
