"""A trained model as a file for others: ONNX, TorchScript, timm's checkpoints, or plain safetensors."""

import importlib.util
import json
import logging
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from jointembed._files import atomic, save_tensors
from jointembed.backbones import SMALL, timm_network

if TYPE_CHECKING:
    from jointembed.graphs import Graph
    from jointembed.model import Model

log = logging.getLogger("jointembed")

Format = Literal["onnx", "torchscript", "timm", "safetensors"]
SUFFIXES: dict[str, str] = {
    "onnx": ".onnx",
    "torchscript": ".pt",
    "timm": ".safetensors",
    "safetensors": ".safetensors",
}
TOLERANCE = 1e-3  # of an output's largest number: how far a file's outputs may be from the model's
LARGEST_ONNX = 2**31  # bytes: what one protobuf may hold


def check_export(out: str | Path, format: str) -> Path:
    """The path, if `export` can write there: to be asked before the work is done."""
    path = Path(out)
    if format not in SUFFIXES:
        raise ValueError(f"format: expected one of {', '.join(SUFFIXES)}, got {format!r}")
    if path.suffix != SUFFIXES[format]:
        raise ValueError(f"out: expected a file name ending in {SUFFIXES[format]} for {format}, got {out}")
    if path.exists() or path.is_symlink():
        raise ValueError(f"out: expected a name that is free, {path} exists")
    missing = [name for name in ("onnx", "onnxscript") if format == "onnx" and importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f"format: onnx needs {' and '.join(missing)}: pip install jointembed[export]")
    return path


def export(model: "Model", out: str | Path, format: Format = "onnx") -> str:
    """Write the model as a file that needs no jointembed, and return how to use it. What is written is tried first.

    Args:
        model: a trained one.
        out: the file: .onnx, .pt for TorchScript, .safetensors for the others. One that exists is refused.
        format: "onnx" or "torchscript", from uint8 images (N, C, side, side) to features, posterior and scores (see
            `jointembed.graphs.Graph`), any N; "timm", the backbone as a checkpoint for `timm.create_model`;
            "safetensors", the backbone's weights, with what its images must be like as metadata.
    """
    path = check_export(out, format)
    writers: dict[str, Callable[[Model, Path], str]] = {
        "onnx": _onnx,
        "torchscript": _torchscript,
        "timm": _timm,
        "safetensors": _safetensors,
    }
    return writers[format](model, path)


def _onnx(model: "Model", path: Path) -> str:
    from jointembed.graphs import Graph

    graph = Graph(model)
    size = sum(t.numel() * t.element_size() for t in graph.state_dict().values())
    if size > LARGEST_ONNX:
        raise ValueError(
            f"format: one .onnx file holds at most 2 GB, the model has {size / 1e9:.1f} GB; try torchscript"
        )
    program = _onnx_program(graph, _noise(model, 2))
    program.model.metadata_props.update({f"jointembed.{k}": v for k, v in metadata(model).items()})
    with atomic(path) as temporary:
        program.save(temporary, external_data=False)
        if importlib.util.find_spec("onnxruntime") is None:
            log.warning(
                "%s was written without being tried: that needs onnxruntime (pip install jointembed[export])", path
            )
        else:
            _compare(model, path, lambda images: _run_onnx(temporary, images))
    return (
        f'session = onnxruntime.InferenceSession("{path}")\n'
        f'session.run(None, {{"images": images}})  # {_expected(model)} -> {", ".join(graph.names)}'
    )


def _onnx_program(graph: "Graph", images: Tensor) -> Any:
    from onnxscript import opset18

    op: Any = opset18

    def lgamma(self: Any) -> Any:
        """Stirling's series, eight steps up, where it is exact to rounding: ONNX has no log-gamma."""

        def number(value: float) -> Any:
            return op.CastLike(value, self)

        x = op.Add(self, number(8.0))
        value = op.Sub(op.Mul(op.Sub(x, number(0.5)), op.Log(x)), op.Sub(x, number(0.5 * math.log(2 * math.pi))))
        for power, coefficient in ((1.0, 1 / 12), (3.0, -1 / 360), (5.0, 1 / 1260)):
            value = op.Add(value, op.Div(number(coefficient), op.Pow(x, number(power))))
        for step in range(8):
            value = op.Sub(value, op.Log(op.Add(self, number(float(step)))))
        return value

    with warnings.catch_warnings(), torch.inference_mode(False), torch.no_grad():
        warnings.simplefilter("ignore")  # of deprecations inside the exporter
        return torch.onnx.export(
            graph,
            (images,),
            input_names=["images"],
            output_names=list(graph.names),
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            custom_translation_table={torch.ops.aten.lgamma.default: lgamma},
            dynamo=True,
            verbose=False,
        )


def _run_onnx(path: Path, images: Tensor) -> dict[str, Tensor]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return {k: torch.from_numpy(v) for k, v in zip(names, session.run(None, {"images": images.numpy()}), strict=True)}


def _torchscript(model: "Model", path: Path) -> str:
    from jointembed.graphs import Graph

    graph = Graph(model)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of deprecation, and of shapes, which are tried below
        traced = torch.jit.trace(graph, (_noise(model, 2),), check_trace=False)
        frozen = torch.jit.freeze(traced.eval(), optimize_numerics=False)  # leaves out what training alone needs
        with atomic(path) as temporary:
            frozen.save(str(temporary), _extra_files={"names": json.dumps(graph.names), **metadata(model)})
            script = torch.jit.load(str(temporary))
            _compare(model, path, lambda images: dict(zip(graph.names, script(images), strict=True)))
    return f'network = torch.jit.load("{path}")\nnetwork(images)  # {_expected(model)} -> {", ".join(graph.names)}'


def _safetensors(model: "Model", path: Path) -> str:
    save_tensors(path, _weights(model), metadata(model))
    return f'weights = safetensors.torch.load_file("{path}")  # {model.config.backbone}, {_expected(model)}, normalised'


def _timm(model: "Model", path: Path) -> str:
    recipe = timm_recipe(model)
    images = _noise(model, 3)
    with atomic(path) as temporary:
        save_tensors(temporary, _weights(model), metadata(model) | {"timm": recipe.text(path)})
        network = recipe.build(temporary).eval()
        with torch.no_grad():
            found = network(model.views.single(images))
        _close(path, "features", found, _backbone_features(model, images))
    c = model.config
    return f"{recipe.text(path)}\n# for images / 255, less mean {c.mean}, over std {c.std}"


@dataclass(frozen=True)
class Recipe:
    """How timm makes a network like a model's backbone."""

    name: str
    arguments: dict[str, Any]
    stem: tuple[int, int, int] | None = None  # channels, width and stride of a 3 x 3 convolution that replaces conv1
    pool: bool = True  # whether there is a max-pool after it

    def text(self, path: Path) -> str:
        """As Python."""
        words = "".join(f", {name}={value!r}" for name, value in self.arguments.items())
        if self.stem is None:
            return f'network = timm.create_model("{self.name}", checkpoint_path="{path}"{words})'
        channels, width, stride = self.stem
        lines = [
            f'network = timm.create_model("{self.name}"{words})',
            f"network.conv1 = torch.nn.Conv2d({channels}, {width}, 3, stride={stride}, padding=1, bias=False)",
            *([] if self.pool else ["network.maxpool = torch.nn.Identity()"]),
            f'timm.models.load_checkpoint(network, "{path}")',
        ]
        return "\n".join(lines)

    def build(self, path: Path) -> nn.Module:
        """The network, with the weights of that file."""
        import timm

        if self.stem is None:
            return timm.create_model(self.name, checkpoint_path=str(path), **self.arguments)
        network: Any = timm.create_model(self.name, **self.arguments)
        channels, width, stride = self.stem
        network.conv1 = nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False)
        if not self.pool:
            network.maxpool = nn.Identity()
        timm.models.load_checkpoint(network, str(path))
        return network


def timm_recipe(model: "Model") -> Recipe:
    """How timm makes the model's backbone; a ValueError where it cannot."""
    import timm

    name, channels, side = model.config.backbone, model.config.channels, model.config.image_size
    network: Any = model.method.backbone
    basic = {"num_classes": 0, "in_chans": channels}
    if name in SMALL and isinstance(network, timm.models.resnet.ResNet):
        stages = [getattr(network, f"layer{i}") for i in range(1, 5)]
        widths = tuple(stage[-1].conv2.out_channels for stage in stages)
        narrow = {
            "layers": tuple(map(len, stages)),
            "channels": widths,
            "stem_type": "deep",
            "stem_width": widths[0] // 2,
        }
        return Recipe("resnet18", basic | narrow, *_stem(network))
    if name in SMALL and isinstance(network, timm.models.vision_transformer.VisionTransformer):
        patch = network.patch_embed.patch_size[0]
        small = {"patch_size": patch, "depth": len(network.blocks), "img_size": side, "dynamic_img_size": True}
        return Recipe("vit_tiny_patch16_224", basic | small)
    if name is None or name in SMALL or not timm.is_model(name):
        what = "a module of your own" if name is None else name
        raise ValueError(
            f"format: expected a backbone that timm can make, got {what}; try onnx, torchscript, safetensors"
        )
    made: Any
    made, arguments = timm_network(name, channels, side)
    if hasattr(made, "conv1") and made.conv1.kernel_size != network.conv1.kernel_size:
        return Recipe(name, arguments, *_stem(network))
    return Recipe(name, arguments)


def _stem(network: Any) -> tuple[tuple[int, int, int], bool]:
    conv = network.conv1
    return (conv.in_channels, conv.out_channels, conv.stride[0]), not isinstance(network.maxpool, nn.Identity)


def metadata(model: "Model") -> dict[str, str]:
    """What one must know to use the weights, as text."""
    c = model.config
    known: dict[str, Any] = {"method": c.method, "backbone": c.backbone, "channels": c.channels}
    known |= {"image_size": c.image_size, "mean": c.mean, "std": c.std}
    known |= {"num_features": model.method.backbone.num_features, "method_options": c.method_options}
    known |= {"data": c.training.get("data"), "images": c.training.get("images")}
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in known.items()}


def _weights(model: "Model") -> dict[str, Tensor]:
    state = model.method.backbone.state_dict()
    return {name: value.detach().cpu().contiguous().clone() for name, value in state.items()}


def _expected(model: "Model") -> str:
    c = model.config
    return f"uint8 (N, {c.channels}, {c.image_size}, {c.image_size})"


def _noise(model: "Model", count: int) -> Tensor:
    shape = (count, model.config.channels, model.config.image_size, model.config.image_size)
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def _backbone_features(model: "Model", images: Tensor) -> Tensor:
    with torch.no_grad():
        return model.method.eval().backbone(model.views.single(images).to(model.device)).cpu()


def _compare(model: "Model", path: Path, run: Callable[[Tensor], Mapping[str, Tensor]]) -> None:
    """What the file gives for three images, one more than it was made with, against what the model says of them."""
    images = _noise(model, 3)
    encoded = next(iter(model._encode(model.open(images), 3, False)))
    posterior: Any = model.method.posterior(encoded) if hasattr(model.method, "posterior") else None  # type: ignore[operator]
    for name, found in run(images).items():
        kind, _, rest = name.partition("_")
        if kind == "score":
            expected = model.method.score(encoded, rest, 0, 0)
        elif kind == "posterior":
            expected = getattr(posterior, rest)
        else:
            expected = encoded[model.method.spaces[0] if name == "features" else name]
        _close(path, name, found, expected)


def _close(path: Path, name: str, found: Tensor, expected: Tensor) -> None:
    expected = expected.detach().float().cpu()
    worst = float((found - expected).abs().max())
    if not worst <= TOLERANCE * max(1.0, float(expected.abs().max())):  # NaN is not
        raise ArithmeticError(f"out: {path} was not written: its {name} would be {worst:.2g} off the model's")
