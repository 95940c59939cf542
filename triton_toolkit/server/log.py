"""The server's own reasons, found in its answers and its log.

For some faults the load call only says ``failed to poll from model repository``; the reason is in the
log alone.
"""

from __future__ import annotations

import re

_ANSWER = re.compile(r"^load failed for model '.*?': (?:version \d+ is at UNAVAILABLE state: )?", re.DOTALL)
_FRAMES = re.compile(r"\n\nAt:\n(?:  .*\n?)+")
_NOT_POLLED = "failed to poll from model repository"
_PARSER = re.compile(r"^\[libprotobuf \w+ .*?\] Error parsing text-format \S+: (?P<text>.*)$")


def reason_of_failure(model: str, answer: str, log: str) -> str:
    """Return why a model did not load.

    Args:
        model: Its name.
        answer: What the load call said.
        log: The whole log.
    """
    if _NOT_POLLED in answer:
        return _polled(model, log) or answer
    return clean(answer)


def clean(answer: str) -> str:
    """Return a refusal without the server's framing and without Python's stack frames."""
    text = _ANSWER.sub("", answer)
    text = _FRAMES.sub("", text).replace("TritonModelException: ", "")
    return text.strip().rstrip(";").strip()


def _polled(model: str, log: str) -> str:
    """Return the log's last line about a model folder that could not be read, "" without one."""
    failed = re.compile(
        rf'"(?:Poll failed for model directory|failed to poll model) \'{re.escape(model)}\': (.*)"$'
    )
    parser, found = "", ""
    for line in log.splitlines():
        if match := _PARSER.match(line):
            parser = match["text"]
        elif match := failed.search(line):
            found = match[1] + (f" ({parser})" if "failed to read text proto" in match[1] and parser else "")
    return found
