"""Parsers of text: names, choices, paths, commands and variables.

A parser takes a value of YAML or JSON and raises ValueError with a sentence that quotes it and names valid values.
"""

import difflib
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from ganger import registry
from ganger.model.job import GitCode
from ganger.model.units import EPHEMERAL_STORAGE, KIB_BYTES
from ganger.patterns import PatternError, pattern
from ganger.spec.spec_document import quote

NAME_PATTERN: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
ENV_NAME_PATTERN: Final = r"[A-Za-z_][A-Za-z0-9_]*"
RESOURCE_PATTERN: Final = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
MAX_RESOURCE_NAME: Final = 253
SIGNALS: Final = ("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM")
ON_FAILURE: Final = ("restart", "fail", "ignore")
STOP_WHEN: Final = ("all", "chief")
WHEN: Final = ("succeeded", "failed", "ended")
REMEDIES: Final = ("retry", "fail", "exclude_node")
METRIC_PATTERN: Final = r"[A-Za-z0-9_./ -]{1,100}"
MAX_MARKER: Final = 100
JOB_PATTERN: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\[\d{1,7}\])?"
RESUME_FROM_PATTERN: Final = rf"{JOB_PATTERN}(:\d{{1,15}})?"
LABEL_PATTERN: Final = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
LABEL_KEY_PATTERN: Final = rf"([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{LABEL_PATTERN}"
REF_PATTERN: Final = r"[A-Za-z0-9_@.][A-Za-z0-9_@./+=^~{}#-]{0,199}"
IMAGE_PATTERN: Final = (
    r"[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?(:\d+/[A-Za-z0-9._/-]+)?(:[\w.-]+)?(@sha256:[0-9a-f]{64})?"
)
FILE_PATTERN: Final = r"[A-Za-z0-9_.=+@-]{1,200}(\*[A-Za-z0-9_.=+@-]{0,200})?|\*[A-Za-z0-9_.=+@-]{0,200}"
MAX_PATTERN: Final = 1000
MAX_NOTES_BYTES: Final = 16 * KIB_BYTES
MAX_NAME: Final = 40
MAX_PATH_BYTES: Final = 4096
MAX_TEXT_BYTES: Final = 128 * KIB_BYTES - 1
"""The longest argument or variable of Linux: MAX_ARG_STRLEN of execve(2), less the terminating zero."""


def nearest(word: str, legal: Iterable[str]) -> str:
    """Return the valid word that was probably meant, or an empty string."""
    by_lower = {candidate.lower(): candidate for candidate in legal}
    close = difflib.get_close_matches(word[:64].lower().replace("-", "_"), by_lower, n=1)
    return by_lower[close[0]] if close else ""


def did_you_mean(word: str, legal: Iterable[str]) -> str:
    """Return the end of a sentence, "; did you mean 'x'?", or an empty string."""
    meant = nearest(word, legal)
    return f"; did you mean {meant!r}?" if meant else ""


def choice(what: str, legal: tuple[str, ...]) -> Callable[[Any], str]:
    """Return a parser of one of `legal`; `what` names them in the error."""

    def read(value: Any) -> str:
        if isinstance(value, str) and value in legal:
            return value
        meant = did_you_mean(str(value), legal) if isinstance(value, str) else ""
        raise ValueError(f"{quote(value)} is not {what}: write {join_words(legal)}{meant}")

    return read


def matching(what: str, pattern: str, example: str) -> Callable[[Any], str]:
    """Return a parser of texts that match `pattern` as a whole; `what` and `example` name them in the error."""

    def read(value: Any) -> str:
        if isinstance(value, str) and re.fullmatch(pattern, value):
            return value
        raise ValueError(f"{quote(value)} is not {what}: write one such as {example}")

    return read


def read_flag(value: Any) -> bool:
    """Parse true or false."""
    if value is True or value is False:
        return value
    raise ValueError(f"{quote(value)} is neither true nor false: write true or false without quotes")


def join_words(words: Iterable[str]) -> str:
    """Return words as part of a sentence: `a, b or c`; `none` if there are none."""
    *most, last = tuple(words) or ("none",)
    return f"{', '.join(most)} or {last}" if most else last


def read_name(value: Any) -> str:
    """Parse a name; the error suggests a similar valid one."""
    legal = f"lower-case letters, digits and '-' inside, at most {MAX_NAME} characters"
    if isinstance(value, str) and len(value) <= MAX_NAME and re.fullmatch(NAME_PATTERN, value):
        return value
    clean = re.sub(r"[^a-z0-9]+", "-", str(value).lower()).strip("-")[:MAX_NAME].strip("-")
    raise ValueError(f"{quote(value)} is not a name: write {legal}" + (f", for instance {clean!r}" if clean else ""))


def read_framework(value: Any) -> str:
    """Parse the name of an existing framework."""
    legal = registry.frameworks()
    if isinstance(value, str) and value in legal:
        return value
    meant = did_you_mean(value, legal) if isinstance(value, str) else ""
    broken = "".join(f"; {sentence}" for sentence in registry.broken().values())
    raise ValueError(f"{quote(value)} is not a framework: write {join_words(sorted(legal))}{meant}{broken}")


def read_log_marker(value: Any) -> str:
    """Parse the text before a figure in a log line."""
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_MARKER or not value.isprintable():
        raise ValueError(f"{quote(value)} is not a part of a log line: write the text before the number, as 'loss:'")
    return value


def read_path(value: Any) -> str:
    """Parse a path, which no shell has expanded."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{quote(value)} is not a directory: write its path")
    if value.startswith("~") or "$" in value:
        raise ValueError(f"{quote(value)} is not a path as it stands: '~' and '$' are a shell's, write the path out")
    if len(value.encode()) > MAX_PATH_BYTES:
        raise ValueError(f"{quote(value)} is longer than a path can be: write at most {MAX_PATH_BYTES} bytes")
    return value


def read_file_pattern(value: Any) -> str:
    """Parse a file name, with at most one `*`."""
    is_name = isinstance(value, str) and re.fullmatch(FILE_PATTERN, value)
    if not is_name or value in (".", ".."):
        raise ValueError(f"{quote(value)} is not a name of files: write letters, digits, _.=+@- and one '*'")
    return str(value)


def read_shell(value: Any) -> str:
    """Parse a shell line."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{quote(value)} is not a command: write a shell line")
    return _short(value, "a command")


def read_command(value: Any) -> str | tuple[str, ...]:
    """Parse a shell line, or a tuple of words."""
    if isinstance(value, list):
        if not value or not all(isinstance(word, str) for word in value) or not value[0]:
            raise ValueError(f"{quote(value)} is not a command: write a list of words, the program first")
        return tuple(_short(word, "an argument") for word in value)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{quote(value)} is not a command: write a shell line, or a list of words")
    return _short(value, "a command")


def read_argv(value: Any) -> tuple[str, ...]:
    """Parse the words of a program that is run without a shell; an empty list is none."""
    is_text = isinstance(value, list) and all(isinstance(word, str) and "\0" not in word for word in value)
    if is_text and (not value or value[0]):
        return tuple(_short(word, "an argument") for word in value)
    raise ValueError(f"{quote(value)} is not a list of words: write the program first, for instance [ipmitool, power]")


def write_command(value: str | tuple[str, ...]) -> str | list[str]:
    """Return a shell line, or a list of words."""
    return value if isinstance(value, str) else list(value)


def _short(text: str, what: str) -> str:
    if len(text.encode()) > MAX_TEXT_BYTES:
        raise ValueError(f"{quote(text)} is longer than {what} can be: put what is over 128 KiB into a file")
    return text


def read_env_name(value: str) -> str:
    """Parse the name of a variable."""
    if not re.fullmatch(ENV_NAME_PATTERN, value):
        raise ValueError(
            f"{quote(value)} is not the name of a variable: write letters, digits and '_', no digit at the beginning"
        )
    return value


def read_env_value(value: Any) -> str:
    """Parse the value of a variable."""
    if isinstance(value, str):
        return _short(value, "a variable")
    raise ValueError(f"{quote(value)} is not the value of a variable: write text or a number")


def read_quoted_value(value: Any) -> str:
    """Parse the value of a variable of an object of Kubernetes, where a number is not text."""
    if isinstance(value, str):
        return _short(value, "a variable")
    raise ValueError(f"{quote(value)} is not text: write it in quotes")


def read_job(value: Any) -> str:
    """Parse the name or the id of a job."""
    if isinstance(value, str) and len(value) <= MAX_NAME + 20 and re.fullmatch(JOB_PATTERN, value):
        return value
    raise ValueError(f"{quote(value)} is not a job: write its name, or its id as `ganger ls` has it")


def read_resume_from(value: Any) -> str:
    """Parse the name or the id of a job, and a step behind it."""
    if isinstance(value, str) and len(value) <= MAX_NAME + 40 and re.fullmatch(RESUME_FROM_PATTERN, value):
        return value
    raise ValueError(f"{quote(value)} is neither JOB nor JOB:STEP: write a job's name or id, such as bert-7f3:12000")


def read_absolute_path(value: Any) -> str:
    """Parse an absolute path."""
    path = read_path(value)
    if not path.startswith("/"):
        raise ValueError(f"{quote(value)} is not an absolute path: write it out from /")
    return path


def read_code(value: Any) -> Any:
    """Parse a directory; return a mapping that names a repository as it is."""
    if isinstance(value, str) and re.match(r"[A-Za-z][-A-Za-z+.]*://", value):
        raise ValueError("a URL is not a directory: write code: {git: URL}")  # not quoted: it may have a password in it
    return value if isinstance(value, dict) else read_path(value)


def write_code(value: str | GitCode) -> Any:
    """Return a directory, or the mapping of a repository."""
    if isinstance(value, str):
        return value
    return {"git": value.git} | ({} if value.ref == "HEAD" else {"ref": value.ref})


def read_git_url(value: Any) -> str:
    """Parse the URL of a repository; one with credentials is refused, because specs are shown to all users.

    Such a URL is not quoted either: errors are printed, and kept in logs.
    """
    legal = "write https://HOST/PATH, ssh://HOST/PATH, USER@HOST:PATH, git://HOST/PATH or file:///PATH"
    if isinstance(value, str) and _may_have_credentials(value):
        raise ValueError(
            "the URL may have a password or a token in it (before an @, or after a ?): "
            "leave it out, and keep it where git keeps it, or use ssh"
        )
    if not isinstance(value, str) or len(value) > MAX_PATH_BYTES or not value.isascii() or not value.isprintable():
        raise ValueError(f"{quote(value)} is not the URL of a repository: {legal}")
    host = r"[A-Za-z0-9][-A-Za-z0-9.]*"
    login = r"([A-Za-z0-9_][-A-Za-z0-9_.]*@)?"
    known = (
        rf"(https|git)://{host}(:\d+)?/[^ ]+|ssh://{login}{host}(:\d+)?/[^ ]+|{login}{host}:[^-/ :][^ :]*|file:///[^ ]+"
    )
    if not re.fullmatch(known, value):
        raise ValueError(f"{quote(value)} is not the URL of a repository: {legal}")
    return value


def _may_have_credentials(url: str) -> bool:
    """Tell if there may be a password or a token in a URL, valid or not. The login of ssh is none."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return bool(re.match(r"[^@]*:[^@]*@", url))  # https:/NAME:TOKEN@HOST, or NAME:TOKEN@HOST
    if scheme == "file" and rest.startswith("/"):
        return False  # no host
    login, at, _ = rest.rpartition("@")
    is_login = scheme == "ssh" and re.fullmatch(r"[-A-Za-z0-9_.]*", login)
    return bool(at and not is_login) or "?" in rest


def read_git_ref(value: Any) -> str:
    """Parse a branch, tag or commit."""
    if isinstance(value, str) and re.fullmatch(REF_PATTERN, value) and ".." not in value:
        return value
    raise ValueError(f"{quote(value)} is not a branch, a tag or a commit: write one, for instance main or v1.2")


def read_pattern(value: Any) -> str:
    """Parse a regular expression."""
    if not isinstance(value, str) or not value or len(value) > MAX_PATTERN:
        raise ValueError(f"{quote(value)} is not a pattern: write text of 1 to {MAX_PATTERN} characters")
    try:
        pattern(value)
    except PatternError as error:
        raise ValueError(f"{quote(value)} is not a regular expression: {error}") from None
    return value


def read_label_key(value: str) -> str:
    """Parse the key of a label."""
    if re.fullmatch(LABEL_KEY_PATTERN, value) and ".." not in value.rpartition("/")[0]:
        return value
    raise ValueError(
        f"{quote(value)} is not the key of a label: write at most 63 letters, digits, '-', '_' and '.', "
        "a letter or digit at both ends, after them nothing; before them a domain and '/' may stand"
    )


def read_label_value(value: Any) -> str:
    """Parse the value of a label."""
    if isinstance(value, str) and (not value or re.fullmatch(LABEL_PATTERN, value)):
        return value
    raise ValueError(
        f"{quote(value)} is not the value of a label: write at most 63 letters, digits, '-', '_' and '.', "
        "a letter or digit at both ends, or nothing between quotes"
    )


def read_resource_name(value: Any) -> str:
    """Parse the name of an extended resource."""
    domain = str(value).partition("/")[0]
    if not isinstance(value, str) or not re.fullmatch(RESOURCE_PATTERN, value) or len(value) > MAX_RESOURCE_NAME:
        raise ValueError(f"{quote(value)} is not an extended resource: write DOMAIN/NAME, for instance rdma/hca")
    if domain == "kubernetes.io" or domain.endswith(".kubernetes.io"):
        raise ValueError(f"{quote(value)} is not an extended resource: names of kubernetes.io are not, leave it out")
    return value


def read_extended_name(value: Any) -> str:
    """Parse the name of a resource that is counted beside CPUs, memory and GPUs."""
    return EPHEMERAL_STORAGE if value == EPHEMERAL_STORAGE else read_resource_name(value)


def read_annotation(value: Any) -> str:
    """Parse the value of an annotation."""
    if isinstance(value, str):
        return value
    raise ValueError(f"{quote(value)} is not the value of an annotation: write text")


def read_image(value: Any) -> str:
    """Parse the name of a container image."""
    if isinstance(value, str) and re.fullmatch(IMAGE_PATTERN, value):
        return value
    raise ValueError(f"{quote(value)} is not a container image: write its name, for instance python:3.13-slim")


def read_notes(value: Any) -> str:
    """Parse free text of limited length."""
    if isinstance(value, str) and len(value.encode()) <= MAX_NOTES_BYTES:
        return value
    raise ValueError(f"{quote(value)} cannot be notes: write text of at most {MAX_NOTES_BYTES >> 10} KiB")


def read_param_value(value: Any) -> str:
    """Parse the value of a parameter: that of a variable, without parameters in it."""
    if isinstance(value, str) and "${{" not in value:
        return _short(value, "a parameter")
    raise ValueError(f"{quote(value)} is not the value of a parameter: write text or a number, without ${{{{")


def names(read: Callable[[Any], str], what: str) -> Callable[[Any], tuple[str, ...]]:
    """Return a parser of a list without repetition, whose items `read` parses; `what` names them in the error."""

    def read_all(value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ValueError(f"{quote(value)} is not a list of {what}: write [A, B]")
        items = tuple(map(read, value))
        if duplicate := next((item for index, item in enumerate(items) if item in items[:index]), None):
            raise ValueError(f"{quote(duplicate)} is given twice: remove one")
        return items

    return read_all
