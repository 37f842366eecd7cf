"""Completion of words in the shell: the script holds every verb, flag, method and experiment, and calls no Python.

Signatures are read off the source files without importing them: torch alone would take seconds.
"""

import ast
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parent


def completion(shell: Literal["bash", "zsh"] = "bash") -> None:
    """Print a script that lets the shell complete verbs, flags, methods and experiments.

    Args:
        shell: bash or zsh.
    """
    if shell not in ("bash", "zsh"):
        raise ValueError(f"shell: expected bash or zsh, got {shell!r}")
    print(script(shell))


def script(shell: str) -> str:
    """The script for that shell; zsh has a layer that understands bash's."""
    from jointembed.experiments import EXPERIMENTS

    methods = method_options()
    cases = [f'    {verb}) flags="{_flags(names)}" ;;' for verb, names in verb_options().items()]
    options = [f'      {name}) flags="$flags {_flags(names)}" ;;' for name, names in methods.items()]
    lines = [
        *(["autoload -U +X bashcompinit && bashcompinit"] if shell == "zsh" else []),
        "_jointembed() {",
        '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"',
        '  local verb="" method="lejepa" flags="" i',
        "  for ((i = 1; i < COMP_CWORD; i++)); do",
        '    if [[ -z "$verb" && "${COMP_WORDS[i]}" != -* ]]; then verb="${COMP_WORDS[i]}"; fi',
        '    if [[ "${COMP_WORDS[i]}" == --method ]]; then method="${COMP_WORDS[i+1]}"; fi',
        "  done",
        '  if [[ "$before" == --method || ( "$verb" == methods && "$word" != -* ) ]]; then',
        f'    COMPREPLY=($(compgen -W "{" ".join(methods)}" -- "$word")); return',
        "  fi",
        '  if [[ "$before" == --format ]]; then',
        '    COMPREPLY=($(compgen -W "onnx torchscript timm safetensors" -- "$word")); return',
        "  fi",
        '  if [[ "$before" == reproduce ]]; then',
        f'    COMPREPLY=($(compgen -W "{" ".join(EXPERIMENTS)}" -- "$word")); return',
        "  fi",
        '  if [[ "$before" == completion ]]; then COMPREPLY=($(compgen -W "bash zsh" -- "$word")); return; fi',
        '  case "$verb" in',
        f'    "") COMPREPLY=($(compgen -W "{" ".join(verb_options())} --help --debug" -- "$word")); return ;;',
        *cases,
        "  esac",
        '  if [[ "$verb" == train ]]; then',
        '    case "$method" in',
        *options,
        "    esac",
        "  fi",
        '  if [[ "$word" == -* ]]; then',
        '    COMPREPLY=($(compgen -W "$flags --help --debug" -- "$word"))',
        "  else",
        '    COMPREPLY=($(compgen -f -- "$word"))',
        "  fi",
        "}",
        "complete -o filenames -F _jointembed jointembed",
    ]
    return "\n".join(lines)


def verb_options() -> dict[str, list[str]]:
    """The flags of each verb; of train without its method's."""
    from jointembed.cli import POSITIONAL, VERBS

    known = _functions(ROOT / "verbs.py") | _functions(ROOT / "training" / "run.py")
    experiments = (_functions(path).get("run", []) for path in (ROOT / "experiments").glob("*.py"))
    known["reproduce"] = sorted(set().union(*experiments))
    bare = {"run", "runs", *POSITIONAL.values()}
    flags = {verb: ["config", *known.get(verb, [])] for verb in VERBS if verb not in POSITIONAL}
    return {verb: [name for name in flags.get(verb, []) if name not in bare] for verb in VERBS}


def method_options() -> dict[str, list[str]]:
    """The options of each method, by its name."""
    found = {}
    for path in sorted((ROOT / "methods").rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.ClassDef):
                continue
            given = [k.value.value for k in node.keywords if k.arg == "name" and isinstance(k.value, ast.Constant)]
            made = [part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
            if given and made:
                found[str(given[0])] = [option for option in _arguments(made[0]) if option not in ("self", "backbone")]
    return dict(sorted(found.items()))


def _functions(path: Path) -> dict[str, list[str]]:
    """The arguments of the functions in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name: _arguments(node) for node in tree.body if isinstance(node, ast.FunctionDef)}


def _arguments(node: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)]


def _flags(names: list[str]) -> str:
    return " ".join(f"--{name}" for name in names)
