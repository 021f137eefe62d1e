"""Tables of the options of other programs' commands that ganger has under their names."""

from collections.abc import Iterator, Mapping

from ganger.cli.arena.arena_flags import COMMON, GLOBAL_NOTED, JOB_TYPES, UNSUPPORTED, VERBS, Flags
from ganger.framework_api import sbatch
from tools.generate.markdown import code, table


def sbatch_options() -> Iterator[str]:
    """Yield the options of sbatch: those that count, those that change nothing, those that are refused."""
    yield from table(("option of sbatch", "here"), _rows(sbatch.TAKEN | sbatch.TAKEN_FLAGS | sbatch.ACTIONS))
    yield "\nThese change nothing, and are named when the job is submitted:\n"
    yield from table(("option", "why"), _rows(sbatch.NO_EFFECT | sbatch.NO_EFFECT_FLAGS))
    yield "\nThese are errors, as every other option is:\n"
    yield from table(("option", "instead"), _rows(sbatch.REFUSED | sbatch.REFUSED_FLAGS))


def arena_commands() -> Iterator[str]:
    """Yield Arena's commands beside submit, with their flags, and those that ganger does not have."""
    yield from table(
        ("arena", "what is run", "flags that count", "flags that change nothing"),
        (
            (code(verb), text, "; ".join(_flags(flags.taken)), ", ".join(_names(flags.noted)))
            for verb, (text, flags) in VERBS.items()
        ),
    )
    yield "\nNot supported:\n"
    yield from table(("arena", "instead"), ((code(name), text) for name, text in UNSUPPORTED.items()))


def arena_flags() -> Iterator[str]:
    """Yield the flags of `arena submit`: of all types, and then of each."""
    yield from _section("every type", Flags(COMMON.taken, {**COMMON.noted, **GLOBAL_NOTED}, COMMON.refused))
    for kind in JOB_TYPES:
        yield from _section(f"{', '.join(map(code, kind.names))}: `framework: {kind.framework}`", kind.flags)


def _section(title: str, flags: Flags) -> Iterator[str]:
    yield f"\nFlags of {title}\n"
    rows = [*_arena_rows(flags.taken, ""), *_arena_rows(flags.noted, "changes nothing: ")]
    yield from table(("flag", "here"), [*rows, *_arena_rows(flags.refused, "an error: ")])


def _arena_rows(options: Mapping[str, str], prefix: str) -> Iterator[tuple[str, str]]:
    for text in dict.fromkeys(options.values()):
        yield ", ".join(_names({option: has for option, has in options.items() if has == text})), f"{prefix}{text}"


def _names(options: Mapping[str, str]) -> Iterator[str]:
    for option in options:
        short, _, long = option.rstrip("!").partition(":")
        yield code(f"-{short}, --{long}" if short else f"--{long}")


def _flags(options: Mapping[str, str]) -> Iterator[str]:
    return (f"{name}: {text}" for name, text in zip(_names(options), options.values(), strict=True))


def _rows(options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield one row for each text, with all options that have it."""
    for text in dict.fromkeys(options.values()):
        names = [option.partition(":") for option, has in options.items() if has == text]
        yield ", ".join(code(f"-{short}, --{long}" if short else f"--{long}") for short, _, long in names), text
