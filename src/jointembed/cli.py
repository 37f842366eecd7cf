"""The command line: each verb is a function, and its flags, YAML file and help are read off the signature."""

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from jointembed import _usage, verbs

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser


def _train(argv: list[str]) -> Callable[..., Any]:
    """`train` with names for backbones: of modules, the help would list every one there is."""
    import functools
    import inspect

    from jointembed.training import train

    @functools.wraps(train)
    def by_name(**arguments: Any) -> Any:
        return train(**arguments)

    signature = inspect.signature(train)
    parameters = [p.replace(annotation=str) if p.name == "backbone" else p for p in signature.parameters.values()]
    by_name.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    by_name.__annotations__ = train.__annotations__ | {"backbone": str}
    return by_name


def _reproduce(argv: list[str]) -> Callable[..., Any]:
    from jointembed import experiments

    position = argv.index("reproduce") + 1
    return experiments.get(argv[position] if position < len(argv) else "")


def _report(argv: list[str]) -> Callable[..., Any]:
    import functools

    from jointembed.report import write_report

    @functools.wraps(write_report)
    def told(**arguments: Any) -> None:
        print(f"{write_report(**arguments)}: open it in a browser; it needs no network")

    return told


def _completion(argv: list[str]) -> Callable[..., Any]:
    from jointembed.completion import completion

    return completion


VERBS: dict[str, tuple[str, Callable[[list[str]], Callable[..., Any]]]] = {
    "train": ("train a model on unlabelled images", _train),
    "embed": ("embed images with a trained model", lambda argv: verbs.embed),
    "evaluate": ("measure a trained model on labelled images", lambda argv: verbs.evaluate),
    "select": ("rank runs without labels", lambda argv: verbs.select),
    "score": ("score images by how strange they are to a trained model", lambda argv: verbs.score),
    "decode": ("train a decoder, to look at samples with", lambda argv: verbs.decode),
    "sample": ("draw pictures from a trained model's density", lambda argv: verbs.sample),
    "patches": ("show what a trained model sees where", lambda argv: verbs.patches),
    "report": ("write an HTML page on what was learned, and whether to trust it", _report),
    "export": ("write a trained model as ONNX, TorchScript, timm or safetensors", lambda argv: verbs.export),
    "methods": ("list the methods, or one method's options", lambda argv: verbs.methods),
    "reproduce": ("run one of the papers' experiments", _reproduce),
    "completion": ("print a script that lets the shell complete words", _completion),
}


POSITIONAL = {"methods": "name", "completion": "shell"}  # arguments without a flag, of verbs that take no run


def build_parser(argv: list[str]) -> "ArgumentParser":
    """The parser, with only the verb in `argv` spelled out: the others need not be imported to be listed."""
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(prog="jointembed", exit_on_error=False)
    subcommands = parser.add_subcommands()
    verb = _verb(argv)
    for name, (text, function) in VERBS.items():
        example = f"example: {_usage.EXAMPLES[name]}" if name in _usage.EXAMPLES else None
        sub = ArgumentParser(description=text, epilog=example, exit_on_error=False)
        if name == verb:
            _add_arguments(sub, name, function(argv), argv)
        subcommands.add_subcommand(name, sub, help=text)
    return parser


def _verb(argv: list[str]) -> str | None:
    return next((word for word in argv if not word.startswith("-")), None)


def _add_arguments(parser: "ArgumentParser", verb: str, function: Callable[..., Any], argv: list[str]) -> None:
    takes_run = verb in ("embed", "evaluate", "score", "decode", "sample", "patches", "export")
    if takes_run:
        parser.add_argument("run", help="the run folder")
    takes_runs = verb in ("select", "report")
    if takes_runs:
        parser.add_argument("runs", nargs="+", help="the run folders")
    if verb == "reproduce":
        from jointembed.experiments import EXPERIMENTS

        parser.add_argument("experiment", help="; ".join(f"{name}: {text}" for name, text in EXPERIMENTS.items()))
    bare: set[str | int] = {"run"} if takes_run else {"runs"} if takes_runs else set()
    if verb in POSITIONAL:
        bare = {POSITIONAL[verb]}
        parser.add_argument(POSITIONAL[verb], nargs="?", help=None)
    else:
        parser.add_argument("--config", action="config", help="a YAML file with any of these")
    parser.add_function_arguments(function, as_positional=False, skip=bare)
    if verb == "train":  # its method's options are flags as well
        from jointembed import methods

        parser.add_class_arguments(methods.get(_chosen_method(argv)), skip={"backbone"})
    for action in parser._actions:  # a bare --flag means true
        typehint = getattr(action, "_typehint", None)
        if bool in (typehint, *get_args(typehint)):
            action.nargs, action.const = "?", True


def _chosen_method(argv: list[str]) -> str:
    """The method named on the command line or in the YAML file: which flags there are depends on it."""
    import inspect

    from jointembed.training import train

    peek = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    peek.add_argument("--method")
    peek.add_argument("--config")
    found, _ = peek.parse_known_args(argv)
    if found.method is None and found.config is not None and Path(found.config).is_file():
        import yaml

        try:
            content = yaml.safe_load(Path(found.config).read_text())
        except yaml.YAMLError:  # the parser says what is wrong with it
            content = None
        found.method = content.get("method") if isinstance(content, dict) else None
    return found.method or inspect.signature(train).parameters["method"].default


def main(argv: list[str] | None = None) -> None:
    """Entry point: one sentence for an error, the traceback with --debug."""
    words = [_underscored(word) for word in (sys.argv[1:] if argv is None else argv)]
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING if sys.stderr.isatty() else logging.INFO)  # a terminal has the progress bar
    logging.basicConfig(format="%(message)s", handlers=[handler])
    logging.getLogger("jointembed").setLevel(logging.INFO)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    verb = _verb(words)
    try:
        if verb is None and (not words or words[0] in ("-h", "--help")):
            print(_usage.overview({name: text for name, (text, _) in VERBS.items()}))
            return
        if verb not in VERBS:
            raise ValueError(_usage.unknown_verb(verb or words[0], VERBS))
        parser = build_parser(words)
        try:
            values = vars(parser.parse_args(words)[verb])
        except argparse.ArgumentError as error:
            raise ValueError(_usage.sentence(verb, str(error), _flags(parser, verb))) from error
        values.pop("config", None)
        values.pop("experiment", None)
        VERBS[verb][1](words)(**values)
    except (ValueError, OSError, ArithmeticError) as error:
        if debug:
            raise
        sys.exit(f"jointembed: {_shown(error)}")
    except KeyboardInterrupt:
        sys.exit(130)


def _flags(parser: "ArgumentParser", verb: str) -> list[str]:
    """The flags of a verb, as they are spelled."""
    subparsers: Any = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return [flag for action in subparsers.choices[verb]._actions for flag in action.option_strings]


def _shown(error: Exception) -> str:
    """The message as it is, but for control characters that a file name may have brought along."""
    from jointembed._text import printable

    return "\n".join(map(printable, str(error).split("\n")))


def _underscored(word: str) -> str:
    """--stop-on-collapse and --stop_on_collapse are the same flag; so are -n and --n."""
    if word == "-n":
        return "--n"
    if not word.startswith("--"):
        return word
    flag, equals, value = word.partition("=")
    return "--" + flag[2:].replace("-", "_") + equals + value
