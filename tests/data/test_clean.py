"""Cleaning rules on texts whose right treatment is known."""

import textwrap
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preheat.data.clean import POLICIES, apply, gopher, unwrapped, without_licence
from preheat.data.clean.rule import Text

SPEECH = (
    "I embrace with great satisfaction the opportunity which now presents itself of congratulating you on the present favorable "
    "prospects of our public affairs. The recent accession of the important state of North Carolina to the Constitution of the United "
    "States, the rising credit and respectability of our country, the general and increasing good will toward the government of the "
    "Union, and the concord, peace, and plenty with which we are blessed are circumstances auspicious in an eminent degree."
)
SONNET = """\
Shall I compare thee to a summer's day?
Thou art more lovely and more temperate:
Rough winds do shake the darling buds of May,
And summer's lease hath all too short a date;
Sometime too hot the eye of heaven shines,
And often is his gold complexion dimm'd;
And every fair from fair sometime declines,
By chance or nature's changing course untrimm'd;
But thy eternal summer shall not fade,
Nor lose possession of that fair thou ow'st;
Nor shall death brag thou wander'st in his shade,
When in eternal lines to time thou grow'st:
So long as men can breathe or eyes can see,
So long lives this, and this gives life to thee.
"""


HOUSE = ("prose", "reference", "code")


def run(text, policy):
    cleaned, dropped, changes = apply(text, POLICIES[policy])
    return cleaned.text, dropped.reason if dropped else "", [name for name, _ in changes]


@pytest.mark.parametrize("width", [50, 60, 65, 72, 79, 100])
def test_what_textwrap_wrapped_comes_back(width):
    page = f"{SPEECH}\n\nA short line.\n\n{SPEECH.upper()}\n"
    wrapped = "\n\n".join(textwrap.fill(block, width) for block in page.strip().split("\n\n"))
    assert unwrapped(wrapped) == page
    assert run(wrapped, "prose")[2] == ["lines unwrapped"]


@given(st.lists(st.text("abcdefghij", min_size=1, max_size=12), min_size=150, max_size=300), st.integers(50, 110))
def test_unwrapping_undoes_wrapping(words, width):
    text = " ".join(words)
    assert unwrapped(textwrap.fill(text, width)) == text + "\n"


def test_hyphens_at_the_end_of_a_line_stay():
    assert "self-evident truths" in unwrapped(textwrap.fill(SPEECH, 64) + " We hold these as\nself-\nevident truths.").replace("\n", "")


def test_list_items_stay_apart():
    block = textwrap.fill(SPEECH, 64) + "\n" + "\n".join(f"- {textwrap.fill(SPEECH, 62)}" for _ in range(2))
    assert unwrapped(block) == f"{SPEECH}\n- {SPEECH}\n- {SPEECH}\n"


@pytest.mark.parametrize("text", [SONNET, SPEECH + "\n", "a\nb\nc\nd\ne\nf\n", "", f"{SPEECH}\n{SPEECH}\n" * 4])
def test_what_is_not_hard_wrapped_stays(text):
    assert unwrapped(text) == text


DIALOGUE = """\
"I have been thinking of the garden that we saw last year," said the old man to her.
"So have I, and of the house, and of the river behind it, and the boat," she answered.
\u201cThen let us go there again, before the winter comes and the roads are closed,\u201d he said.
"We shall need a carriage and two horses, and something to eat on the way there," she said.
\u2014 And so they went, the two of them, on the very next morning, while it was still dark.
"""
CHINESE = (
    "清晨的阳光透过窗户洒在书桌上、我翻开那本已经泛黄的日记、回忆起童年时在乡下外婆家度过的每一个夏天、那些日子如今想来仍然温暖。",
    "外婆总是很早起床、先去菜园里摘一些新鲜的蔬菜、然后生火做饭、炊烟袅袅升起。",
    "我喜欢跟在她身后、问这问那、她从来不嫌烦、总是微笑着回答我每一个问题、有时还会讲一些古老的故事给我听、让我充满了好奇。",
    "后来我离开了村子、去城里上学、一年只能回去一两次、可是那个院子、那棵老槐树、一直留在我的记忆里、从来没有褪色过。",
    "如今外婆已经不在了。",
    "但每当夏天来临、我总会想起她、我想、那就是一个人留给另一个人最好的礼物、不是金钱、也不是房子、而是陪伴与时光。",
)


@pytest.mark.parametrize(
    "text",
    ["".join(SONNET.splitlines(True)[:8]), DIALOGUE, "\n".join(CHINESE) + "\n"],
    ids=["eight lines of verse of even length", "a paragraph a line", "a Chinese paragraph a line"],
)
def test_lines_that_mean_something_stay(text):
    """Without spaces every next line is one word, which never fits; a line break was a space in the middle of a Chinese text then."""
    assert unwrapped(text) == text


@pytest.mark.parametrize("width", [25, 30, 38])
def test_chinese_lines_are_put_together_without_spaces(width):
    paragraph = "".join(CHINESE)
    lines = [paragraph[at : at + width] for at in range(0, len(paragraph), width)]
    assert unwrapped("\n".join(lines)) == paragraph + "\n"


def test_capitals_that_are_wrapped_come_back():
    assert unwrapped(textwrap.fill(SPEECH.upper(), 70)) == SPEECH.upper() + "\n"


def test_code_in_a_wrapped_page_stays():
    code = "```python\nfor i in range(10):\n    print(i)\n\n\nx = 1\ny = x\n```"
    page = f"{textwrap.fill(SPEECH, 72)}\n\n{code}\n\n{textwrap.fill(SPEECH, 72)}\n"
    expected = f"{SPEECH}\n\n{code}\n\n{SPEECH}\n".replace("\n\n\nx", "\n\nx")
    assert unwrapped(page) == expected
    plain = "x = f(1)\ny = g(x)\nreturn y\n"
    assert unwrapped(f"{textwrap.fill(SPEECH, 40)}\n\n" + plain) == f"{textwrap.fill(SPEECH, 40)}\n\n" + plain
    assert unwrapped(f"{textwrap.fill(SPEECH * 3, 72)}\n\n" + plain) == f"{SPEECH * 3}\n\n" + plain


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=300), st.sampled_from(HOUSE))
def test_cleaning_twice_changes_nothing_more(text, policy):
    once, _, _ = run(text, policy)
    assert run(once, policy)[0] == once


@given(st.text(st.sampled_from("ab \n\t\u00a0é\u0301-.|#/*"), max_size=300), st.sampled_from(HOUSE))
def test_cleaning_twice_changes_nothing_more_on_dense_layout(text, policy):
    once, _, _ = run(text, policy)
    assert run(once, policy)[0] == once


def test_characters_and_space():
    text = f"Cafe\u0301\u00a0au\u00adlait \t is  good.  \n\n\n\n\n{SPEECH}"
    assert run(text, "prose")[0] == f"Café aulait is good.\n\n\n{SPEECH}\n"
    code = "def f():  \n\treturn  {1:  2}\n" + "# padding to be long enough to stay\n" * 3
    assert run(code, "code")[0].startswith("def f():\n\treturn  {1:  2}\n")


def test_formulas_and_tables_keep_their_columns_in_reference():
    table = ">>> pprint(x**2/2)\n 2\nx \n--\n2 \n\n a   |  b  | c\n"
    assert table.replace("x \n", "x\n").replace("2 \n", "2\n") in run(table + SPEECH, "reference")[0]


@pytest.mark.parametrize(
    "line", ["Home | About | Contact", "« Prev · Up · Next »".strip("« »"), "Skip to main content", "Back to top", "© 2019 Example Ltd."]
)
def test_menus_go(line):
    assert run(f"{line}\n\n{SPEECH}\n", "prose")[0] == f"{SPEECH}\n"


@pytest.mark.parametrize(
    "line", ["Up and up it went.", "a | b | c", "Next, we turn home.", "Contents", "Copyright law protects authors, and " + "so on " * 30]
)
def test_sentences_and_tables_are_no_menus(line):
    assert line.strip() in run(f"{line}\n\n{SPEECH}\n", "reference")[0]


@pytest.mark.parametrize(
    ("text", "policy", "reason"),
    [
        ("Too little.", "prose", "too short"),
        ("", "reference", "too short"),
        (SPEECH, "prose", ""),
        (SONNET, "prose", ""),
        ("3.14 2.71 1.41 " * 50, "reference", "few letters"),
        (SPEECH + "QUJD" * 300, "prose", "long run without a break"),
        ("我们认为下面这些真理是不言而喻的" * 100, "prose", ""),
        ("我们认为下面这些真理是不言而喻的" * 1000, "prose", "long run without a break"),
        (SPEECH + "\n" + " " * 5000 + "x\n", "reference", "long run without a break"),
        ("Мы исходим из той самоочевидной истины, что все люди созданы равными. " * 5, "prose", ""),
        ("Click the button to go on.\n" * 20, "prose", "repeated lines"),
        ("x = 1\n" * 5 + "import os\n" * 40, "code", "repeated lines"),
        ("# Generated by the protocol buffer compiler.  DO NOT EDIT!\n" + "def f(): pass\n\n\ndef g(): pass\n" * 4, "code", "generated"),
        ("var a=function(b,c){return b.d(c)||e};" * 20, "code", "minified"),
        (
            '"""Helpers that generate by-products from inputs, written by hand."""\n\ndef by_product(inputs):\n    return inputs * 2\n',
            "code",
            "",
        ),
    ],
)
def test_reasons(text, policy, reason):
    assert run(text, policy)[1] == reason


BODY = "import os\n\n# Copyright is mentioned here, in the code.\nprint(os.getcwd())\n"


@pytest.mark.parametrize(
    ("header", "left"),
    [
        ("# Copyright 2001 The Authors.\n# All rights reserved.\n\n", ""),
        (
            "#!/usr/bin/env python\n# -*- coding: utf-8 -*-\n# SPDX-License-Identifier: MIT\n\n",
            "#!/usr/bin/env python\n# -*- coding: utf-8 -*-\n",
        ),
        ("// Copyright 2001.\n// Licensed under X.\n", ""),
        ("/*\n * Licensed to the ASF under one or more\n * contributor license agreements.\n */\n\n", ""),
        ("# What this module does.\n\n", "# What this module does.\n\n"),
        ('"""Licence managers."""\n', '"""Licence managers."""\n'),
    ],
)
def test_licence_headers_go(header, left):
    assert without_licence(header + BODY) == left + BODY


def test_thresholds_at_their_ends_do_no_harm():
    """No words, and more characters than a memory holds."""
    numbers = dict(POLICIES["gopher"].numbers) | {"gopher.min_words": 0.0, "gopher.min_mean_word": 0.0}
    for text in ("!!! ???", "\u2014", "{"):
        assert gopher.quality(Text(text), numbers).reason == "gopher: words without a letter"
    numbers = dict(POLICIES["prose"].numbers) | {"run.max_characters": 1e18}
    assert apply(SPEECH, replace(POLICIES["prose"], numbers=numbers))[1] is None
