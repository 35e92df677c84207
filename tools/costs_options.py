"""What the commands of `oracles costs` share: which model and device are meant, and how tables and plots are written."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from oracles.properties.declaration import UsageError
from oracles.reference import ModelConfig, parameter_count
from oracles.reference.costs_parameters import ParameterCount
from oracles.reference.model_presets import Device, device, preset

from .rendering import console

Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Plot = Annotated[Path | None, typer.Option(help="Write a plot to this file (.png, .svg, .pdf). Needs oracles[plots].")]
Model = Annotated[str | None, typer.Option("--model", help="A public model: `oracles costs models` lists them.")]
Config = Annotated[Path | None, typer.Option("--config", help="A config.json of your own, with the keys of Hugging Face.")]
DeviceName = Annotated[str, typer.Option("--device", help="An accelerator: v100, a100-40gb, a100-80gb, h100, h200.")]
Devices = Annotated[int, typer.Option(min=1, help="Devices that share the work.")]
WeightBits = Annotated[int, typer.Option(min=1, help="Bits of each weight as loaded; scales of quantized ones are left out.")]
KvBits = Annotated[int, typer.Option(min=1, help="Bits of each number in the cache; scales of quantized ones are left out.")]


@dataclass(frozen=True)
class Chosen:
    """The model that is meant, and where its sizes are from."""

    name: str
    config: ModelConfig
    source: str

    @property
    def parameters(self) -> ParameterCount:
        return parameter_count(self.config)

    def weight_bytes(self, bits: int) -> int:
        """Bytes of all weights as loaded, active or not."""
        return -(-self.parameters.total * bits // 8)

    def read_bytes(self, bits: int) -> int:
        """Bytes of the weights that a step of decoding reads whatever its batch: all but the tables that are looked up."""
        return -(-(self.parameters.total - self.parameters.looked_up) * bits // 8)

    def row_bytes(self, bits: int) -> int:
        """Bytes of the rows of those tables that each sequence of a batch reads in a step."""
        rows = bool(self.parameters.positions) + bool(self.parameters.head)
        return -(-rows * self.config.hidden * bits // 8)

    def to_json(self) -> dict[str, Any]:
        return {"model": self.name, "parameters": self.parameters.total, "active_parameters": self.parameters.active,
                "source": self.source, "assumed": self.config.assumed}  # fmt: skip

    def remark(self) -> str:
        count = self.parameters
        told = f"{self.name}: {count.total:,} parameters"
        told += f", {count.active:,} active for a token" if count.idle else ""
        return f"{told}; sizes from {self.source}." + (f" {self.config.assumed}." if self.config.assumed else "")


def chosen(model: str | None, config: Path | None) -> Chosen:
    """The model of the options. Raises UsageError unless exactly one is given and can be read."""
    if (model is None) == (config is None):
        raise UsageError("model, config: got both; want one" if model else "model, config: got neither; want --model NAME or --config FILE")
    try:
        if model is not None:
            found = preset(model)
            return Chosen(model, found.config, found.source)
        assert config is not None
        try:
            keys = json.loads(config.read_text())
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"config: got {config}, which cannot be read as JSON: {error}") from None
        if not isinstance(keys, dict):
            raise ValueError(f"config: {config} holds no JSON object; want the keys of a config.json")
        sizes = ModelConfig.read(keys.get("text_config") or keys)
        if not sizes.vocabulary or not (sizes.intermediate or sizes.expert_intermediate):
            raise ValueError(f"config: {config} has no vocab_size or no intermediate_size; want both")
        return Chosen(config.stem, sizes, str(config))
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(str(error)) from None


def accelerator(name: str) -> Device:
    """The device of that name. Raises UsageError that lists the names there are."""
    try:
        return device(name)
    except ValueError as error:
        raise UsageError(str(error)) from None


def print_json(data: dict[str, Any]) -> None:
    """Strict JSON: a number that is not finite stands as null."""
    print(json.dumps(_finite(data), indent=1, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and value - value != 0.0 else value


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]], *remarks: str, right: Sequence[int] | None = None) -> None:
    """A table, and what there is to say below it. right: the columns of figures; None: all but the first."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    for index, title in enumerate(titles):
        table.add_column(title, justify="right" if index in (right or range(1, len(titles))) else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    screen = console()
    screen.print(table)
    for remark in remarks:
        if remark:
            screen.print(remark, markup=False, highlight=False)


def new_figure(width: float = 7.5, height: float = 4.5) -> Any:
    """An empty figure of matplotlib. Raises UsageError where that is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("plot: matplotlib is not installed; want it: pip install 'oracles[plots]'") from None
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, path: Path) -> None:
    """To a temporary file first: nobody finds half a picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=path.suffix)
    os.close(descriptor)
    try:
        figure.savefig(temporary, dpi=120)
        os.replace(temporary, path)
    except ValueError as error:                                                 # matplotlib names the formats it can write
        raise UsageError(f"plot: {error}") from None
    finally:
        Path(temporary).unlink(missing_ok=True)
