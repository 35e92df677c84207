"""`oracles costs`: the arithmetic of memory and serving as tables, plots and JSON. The figures are the oracles'."""

from __future__ import annotations

import typer

from .costs_memory import kv, memory, models
from .costs_paging import paging
from .costs_scaling import facts, scaling
from .costs_serving import roofline, serve

costs_app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None,
                        help="What memory and serving cost, by formula or by simulation.")  # fmt: skip

for command in (memory, kv, roofline, serve, scaling, paging, models, facts):
    costs_app.command()(command)
