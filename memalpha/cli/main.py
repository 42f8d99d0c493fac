"""The command `memalpha`: registers the commands of the other files and turns errors into exit codes.

Results go to stdout (with `--json` as one JSON value), progress and messages to stderr. Exit code 2: the user can mend
it (a key, file, name or value). Exit code 1: a system under test raised, or a check found problems. Any other error is
a bug in memalpha and keeps its traceback.
"""

from __future__ import annotations

import copy
import errno
import functools
import inspect
import io
import os
import re
import sys
import tomllib
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Annotated, Any, NoReturn, cast, get_args, get_origin

import typer
from pydantic import ValidationError
from typer import Argument, Option
from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo

from memalpha import __version__
from memalpha.arguments import check_path
from memalpha.cli import checks, config, data, evaluate, read, serve, store, train
from memalpha.cli.options import PARAMETERS, PROCESS_RANK, Result, print_result, visible
from memalpha.config.files import setting_synonyms
from memalpha.errors import (
    ConfigError,
    EvaluationError,
    MemalphaError,
    UnknownFieldWarning,
    did_you_mean,
    install_command,
)


class _PanelGroup(TyperGroup):
    """Group whose plain help lists the commands by panel, as typer's rich help does."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        commands = cast("Mapping[str, Any]", self.commands)  # TyperCommand or TyperGroup: both know their panel
        width = formatter.width - 6 - max(map(len, commands))
        for name, command in commands.items():
            panels.setdefault(command.rich_help_panel, []).append((name, command.get_short_help_str(width)))
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)


app = typer.Typer(
    name="memalpha",
    cls=_PanelGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="List, prepare, check and compare data sets.", no_args_is_help=True)
judge_app = typer.Typer(help="Check language models that judge answers.", no_args_is_help=True)
keys_app = typer.Typer(help="Make, list and revoke API keys of a served store.", no_args_is_help=True)
app.add_typer(data_app, name="data", rich_help_panel="Train")
app.add_typer(judge_app, name="judge", rich_help_panel="Evaluate")
app.add_typer(keys_app, name="keys", rich_help_panel="Use a memory")


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train, evaluate and use memory agents."""


class _Callback:
    """Function of a command for typer; its signature is read when it runs.

    What typer needs to know of a parameter is in its annotation, or else in `PARAMETERS`; its help is in the function's
    docstring, under Args. An argument is called by its name in capitals unless `Argument` names it. A flag has no
    opposite. A function that returns a `Result` has `--json`.
    """

    def __init__(self, command: Callable[..., Result | None]) -> None:
        functools.update_wrapper(self, command)
        self.command = command
        self.returns_result = command.__annotations__["return"] != "None"
        about, _, descriptions = inspect.cleandoc(command.__doc__ or "").partition("\n\nArgs:\n")
        self.help = about.partition("\n\nRaises:")[0]  # that is for readers of the code
        names_and_texts = re.split(r"^    (\w+): ", descriptions.partition("\n\n")[0], flags=re.MULTILINE)[1:]
        self.descriptions = {
            name: " ".join(text.split()) for name, text in zip(names_and_texts[::2], names_and_texts[1::2], strict=True)
        }

    @property
    def __signature__(self) -> inspect.Signature:
        signature = inspect.signature(self.command, eval_str=True)
        parameters = [self._describe(parameter) for parameter in signature.parameters.values()]
        if self.returns_result:
            as_json = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=bool)
            parameters.insert(0, self._describe(as_json))  # it precedes those that are keyword-only
        return signature.replace(parameters=sorted(parameters, key=lambda parameter: parameter.kind))

    def _describe(self, parameter: inspect.Parameter) -> inspect.Parameter:
        """Return a parameter with its help, as typer reads it."""
        annotation = parameter.annotation
        kind, *metadata = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
        is_required = parameter.default is parameter.empty
        default_info = Argument() if is_required else Option()
        info = copy.copy(metadata[0] if metadata else PARAMETERS.get(parameter.name, default_info))
        info.help = self.descriptions.get(parameter.name, info.help)
        if isinstance(info, ArgumentInfo):
            name = parameter.name.upper()
            info.metavar = info.metavar or (name if is_required else f"[{name}]")
        elif kind is bool and info.default is ...:  # typer takes the first name of `Option` for a default
            info.param_decls = ("--" + parameter.name.replace("_", "-"),)
        return parameter.replace(annotation=Annotated[kind, info])

    def __call__(self, *, as_json: bool = False, **options: Any) -> None:
        result = self.command(**options)
        if result is not None:
            print_result(result, as_json)


class _Command(TyperCommand):
    """Command whose paths are looked at before it runs: what no file can be is refused."""

    def invoke(self, ctx: Any) -> Any:
        for name, value in ctx.params.items():
            for path in value if isinstance(value, list | tuple) else (value,):
                if isinstance(path, Path):
                    check_path(name.replace("_", "-"), path, error=ConfigError)
        return super().invoke(ctx)


class _SettingsCommand(_Command):
    """Command with `KEY=VALUE` settings; a setting written as an option is refused with the form to write."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        synonyms = setting_synonyms() if ctx.info_name == "train" else {}
        options = {option.lstrip("-") for parameter in self.get_params(ctx) for option in parameter.opts}
        for index, word in enumerate(args):
            if word == "--":  # what follows are arguments
                break
            name, equals, value = word.partition("=")
            short = name.removeprefix("--")  # dashes would make any two short names alike
            key = short.replace("-", "_")
            if not name.startswith("--") or short in options:
                continue
            if key not in synonyms and did_you_mean(short, options):
                continue
            if not equals:
                value = next((following for following in args[index + 1 : index + 2] if following[0:1] != "-"), "VALUE")
            setting = synonyms.get(key, key).partition(" ")[0]
            raise ConfigError(f"no option {name}: settings are written without dashes, such as {setting}={value}")
        return super().parse_args(ctx, args)


_COMMANDS: dict[str, tuple[Callable[..., Result | None], ...]] = {
    "Use a memory": (
        *(store.add, store.search, store.ask, store.show, read.read, store.import_, store.export, store.copy),
        *(serve.serve, train.fetch),
    ),
    "History": (
        *(store.history, store.diff, store.undo, store.redo, store.revert, store.review, store.fork, store.erase),
    ),
    "Checks": (checks.audit, checks.consolidate, checks.doctor),
    "Train": (
        *(train.demo, train.train, train.study, train.watch, train.report, train.merge, train.push),
        *(checks.check_policy, config.config),
    ),
    "Evaluate": (evaluate.eval_, evaluate.compare),
}
"""Commands by the panel of `memalpha --help` that lists them."""


def _register(group: typer.Typer, *commands: Callable[..., Result | None], panel: str | None = None) -> None:
    """Add commands by the names of their functions, of which those of a group have the first word."""
    for command in commands:
        words = command.__name__.strip("_").split("_")
        name = "-".join(words if group is app else words[:1])
        callback = _Callback(command)
        takes_settings = group is app and "overrides" in inspect.signature(command).parameters
        kind = _SettingsCommand if takes_settings else _Command
        group.command(name, cls=kind, help=callback.help, rich_help_panel=panel)(callback)


for _panel, _commands in _COMMANDS.items():
    _register(app, *_commands, panel=_panel)
_register(data_app, data.list_, data.prepare, data.check, data.overlap, data.ask, data.write)
_register(judge_app, evaluate.check_judge)
_register(keys_app, serve.add_key, serve.list_keys, serve.revoke_key)


def main() -> NoReturn:
    """Run a command: the entry point of the console script.

    Exits with 2 on a `MemalphaError`, where an extra is not installed or the output cannot be written, and with 1 on
    an `EvaluationError`.
    """
    warnings.formatwarning = _format_warning
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # characters that the output's encoding lacks
    try:
        try:
            # Typer reads the parameters of every command that it is given, which took a tenth of the time of a search.
            commands = [command for command in app.registered_commands if command.name in sys.argv[1:2]]
            groups = [group for group in app.registered_groups if group.name in sys.argv[1:2]]
            named = app
            if commands or groups:
                named = copy.copy(app)
                named.registered_commands, named.registered_groups = commands, groups
            named()
        finally:
            if sys.stdout is not None:  # closed
                sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO) or error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still buffered would be tried again at exit
        _exit_with_message(f"the output cannot be written: {(error.strerror or str(error)).lower()}")
    except MemalphaError as error:
        _exit_with_message(str(error), 1 if isinstance(error, EvaluationError) else 2)
    except ModuleNotFoundError as error:
        extra = _extra_of(error.name)
        if extra is None:
            raise
        _exit_with_message(f"this needs {error.name}: {install_command(extra)}")
    except ValidationError as error:
        _exit_with_message("; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()))
    sys.exit(0)


_format_with_source = warnings.formatwarning


def _format_warning(message: Warning | str, category: type[Warning], *source: Any) -> str:
    """Format a warning; one of memalpha's own names no line of its source."""
    if category.__module__ == UnknownFieldWarning.__module__:
        return f"memalpha: {visible(str(message))}\n"
    return _format_with_source(message, category, *source)


def _extra_of(module: str | None) -> str | None:
    """Return the first extra of memalpha that installs a module, None if none does."""
    package = (module or "").partition(".")[0].replace("_", "-")
    try:
        requirements = requires("memalpha") or []
    except PackageNotFoundError:  # a source tree that is not installed
        pyproject = Path(__file__).parents[2] / "pyproject.toml"
        project = tomllib.loads(pyproject.read_text(encoding="utf-8")) if pyproject.is_file() else {}
        extras = project.get("project", {}).get("optional-dependencies", {})
        requirements = [f"{package}; extra == '{extra}'" for extra, packages in extras.items() for package in packages]
    for requirement in requirements:
        match = re.match(r"([\w-]+)[^;]*; extra == ['\"](\w+)", requirement)
        if match and match[1] == package:
            return match[2]
    return None


def _exit_with_message(message: str, code: int = 2) -> NoReturn:
    program = f"memalpha (process {PROCESS_RANK})" if PROCESS_RANK else "memalpha"
    with suppress(OSError):  # stderr may be full, too
        print(f"{program}: {visible(message)}", file=sys.stderr)
    sys.exit(code)
