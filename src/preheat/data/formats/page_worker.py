"""A process that turns HTML pages into text, run as a script: a page that never ends, or crashes the parser, ends this process only.

A request is a page in UTF-8 behind its length in 8 bytes, and so is an answer. Processor time is limited, not time on the clock: the
verdict must not depend on what else the machine does.
"""

from __future__ import annotations

import signal
import sys

from resiliparse.extract.html2text import extract_plain_text


def main(seconds: float) -> None:
    """Answer until the standard input ends; the kernel ends a page that takes more than `seconds` of processor time."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The caller, interrupted by the same key, closes the pipe.
    pages, texts = sys.stdin.buffer, sys.stdout.buffer
    while head := pages.read(8):
        page = pages.read(int.from_bytes(head, "big")).decode()
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        text = extract_plain_text(page, main_content=True, alt_texts=False).encode()
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        texts.write(len(text).to_bytes(8, "big") + text)
        texts.flush()


if __name__ == "__main__":
    main(float(sys.argv[1]))
