import json
import re
import time
from html.parser import HTMLParser

import pytest

from preheat.errors import PreheatError
from preheat.report import render, write

SECTIONS = ["loss", "quality", "schedule", "speed", "events", "data", "recipe", "machine"]
VOID = {"meta", "link", "br"}


class Page(HTMLParser):
    """A strict reader: every element is closed in order; collects elements, attributes and text."""

    def __init__(self, html):
        super().__init__()
        self.open, self.elements, self.texts, self.ids = [], [], [], []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.texts.append(data.strip())

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.texts))


def page(run):
    return Page(render(run.path))


def test_a_whole_run_says_what_was_trained_and_how_good_it_is(run):
    text = page(run.whole()).text
    # 300 steps of 4,096 tokens; 1.861 / 3.512 = 0.530 and 1.861 / 2.014 = 0.924.
    assert "A model of 3.9M parameters, trained on 1.23M tokens in 3 min" in text
    assert (
        "1.861 bits for a byte of held-out text: 47% less than the 3.512 of a unigram model and 8% less than the 2.014 of a 4-gram model"
        in text
    )
    for phrase in [
        "300 steps",
        "spike of the gradient norm",
        "5 checkpoints saved, from step 25 on",
        "62.0% ± 3.4",
        "12 too short (clean)",
    ]:
        assert phrase in text
    for absent in ["Not finished", "Not evaluated", "half written", "is recorded yet"]:
        assert absent not in text
    assert "generated" not in text  # a reason that dropped nothing


def test_what_was_planned_stands_beside_what_was_measured(run):
    run.whole()
    plan = json.loads((run.path / "plan.json").read_text("utf-8"))
    expected = {"gpus": 4, "gpu": "A100-80", "tokens_per_s": 6_600.0, "mfu": 0.4, "memory_bytes": 8 * 2**30, "days": 0.5, "cost_usd": 62.4}
    run.json("plan.json", plan | {"foreseen": expected})
    text = page(run).text
    assert "tokens/s, median, planned 6.60K" in text or "tokens/s, median, planned 6,600" in text
    assert "12 h" in text
    assert "$62, 8.0 GiB a GPU on 4 A100-80" in text


def test_a_model_worse_than_a_baseline_is_told_so(run):
    run.recipe().evaluation(overall={"bits_per_byte": 2.2154}, baselines={"kneser_ney_4gram": {"bits_per_byte": 2.014}})
    assert "10% more than the 2.014 of a 4-gram model" in page(run).text


def test_every_value_of_the_recipe_stands_there_with_its_origin(run):
    run.recipe()
    identity = json.loads((run.path / "recipe.json").read_text())
    text = page(run).text
    for key, origin in identity["origins"].items():
        place = "default" if origin["kind"] == "default" else f"{origin['file']}:{origin['line']}"
        assert not key or re.search(rf"(^| ){re.escape(key)} .*? {re.escape(place)} ", text), key
    assert "LLaMA, arXiv 2302.13971, section 2.3: AdamW" in text
    assert f"model.rope_theta 10000.0 tiny:{identity['origins']['model.rope_theta']['line']}" in text


def test_a_run_that_goes_on_is_shown_as_such(run):
    text = page(run.recipe().environment().plan().metrics(steps=120).events()).text
    assert "Not finished: step 120 of 300, 40% of the tokens" in text
    assert "Not evaluated yet. The last measurement within the run, at step 100" in text
    assert "of 1.23M planned" in text


def test_a_run_without_a_step_is_a_page_too(run):
    text = page(run.recipe()).text
    assert "No step is recorded yet." in text
    assert text.count("Nothing is recorded yet.") == 9
    assert "The folder has no data.json." in text


def test_a_half_written_last_line_is_left_out_and_told(run):
    run.whole()
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"tokens": 1232896, "step": 301, "loss": 99')
    text = page(run).text
    assert "The last line of metrics.jsonl was only half written and is left out." in text
    assert "99" not in re.findall(r"loss of the step: ([\d. to]+)", text)


def test_an_evaluation_older_than_the_run_is_told(run):
    assert "The evaluation is of step 200; the run has gone on to step 300 since." in page(run.whole().evaluation(step=200)).text


def test_losses_that_are_not_finite_are_counted(run):
    run.recipe().plan()
    run.lines(
        "metrics.jsonl", [record | ({"loss": None, "grad_norm": None} if record["step"] in (5, 9) else {}) for record in run.records()]
    )
    assert "2 steps had a loss that is not finite" in page(run).text


def test_a_run_whose_every_loss_is_not_finite_is_a_page_too(run):
    run.recipe().plan()
    run.lines("metrics.jsonl", [record | {"loss": None, "grad_norm": None, "held_out": {}} for record in run.records(steps=3)])
    assert "3 steps had a loss that is not finite" in page(run).text


HOSTILE = "</style></title></svg>\"'><script>alert(1)</script><img src=x onerror=alert(1)>{{ 7 * 7 }}"


def test_nothing_from_a_file_becomes_markup(run):
    def poison(value):
        if isinstance(value, dict):
            return {(HOSTILE if key in {"prose", "unigram"} else key): poison(entry) for key, entry in value.items()}
        if isinstance(value, list):
            return [poison(entry) for entry in value]
        return HOSTILE if isinstance(value, str) else value

    run.whole()
    clean = page(run)
    for path in run.path.glob("*.json"):
        path.write_text(json.dumps(poison(json.loads(path.read_text())) | {"schema": "preheat.run/1"}))
    for path in run.path.glob("*.jsonl"):
        run.lines(path.name, [poison(json.loads(line)) for line in path.read_text().splitlines()])
    poisoned = page(run)
    assert {tag for tag, _ in poisoned.elements} <= {tag for tag, _ in clean.elements}
    assert {name for _, found in poisoned.elements for name in found} <= {name for _, found in clean.elements for name in found}
    assert "<script>alert(1)</script>" in poisoned.text
    assert "{{ 7 * 7 }}" in poisoned.text


def test_the_page_asks_for_nothing_from_outside(run):
    run.whole()
    html = render(run.path)
    assert "default-src 'none'" in html
    assert not re.search(r"https?:|@import|url\(|//", html)
    for tag, attributes in Page(html).elements:
        assert tag not in {"script", "img", "iframe", "object", "embed"}
        for name, value in attributes.items():
            assert name not in {"src", "srcset", "action"}
            assert name != "href" or value.startswith("#") or value == "data:,"


def test_the_navigation_leads_to_every_section(run):
    elements = page(run.whole()).elements
    assert [attributes["id"] for tag, attributes in elements if tag == "section"] == SECTIONS
    assert [attributes["href"] for tag, attributes in elements if tag == "a"] == [f"#{name}" for name in SECTIONS]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("recipe.json", "{}", "schema None"),
        ("recipe.json", "[]", "holds a list"),
        ("recipe.json", '{"schema": "preheat.run/1"', "is no JSON"),
        ("evaluation.json", '{"step": 1}', "evaluation.json tokens"),
        ("plan.json", '{"total_tokens": 0, "total_steps": 0, "segments": []}', "total_tokens"),
        ("metrics.jsonl", '{"step": 1}\n', "metrics.jsonl:1 tokens"),
        ("metrics.jsonl", '{"step": 1\n{"step": 2}\n', "line 1 is no JSON object"),
        ("events.jsonl", '{"time": NaN, "tokens": 0, "step": 0, "kind": "start"}\n', "events.jsonl:1 time"),
        ("data.json", '{"sources": [7]}', "data.json sources.0"),
    ],
)
def test_a_damaged_file_is_named_and_nothing_is_written(run, tmp_path, name, content, message):
    run.whole()
    (run.path / name).write_text(content)
    out = tmp_path / "report.html"
    out.write_text("the report of yesterday")
    with pytest.raises(PreheatError, match=re.escape(message)):
        write(run.path, out)
    assert out.read_text() == "the report of yesterday"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["report.html"]


def test_steps_that_go_back_are_refused(run):
    run.recipe()
    records = list(run.records(steps=5))
    run.lines("metrics.jsonl", [*records, records[2]])
    with pytest.raises(PreheatError, match=r"metrics\.jsonl:6"):
        render(run.path)


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(PreheatError, match="is no run folder"):
            render(folder)


def test_a_place_that_is_no_file_is_refused(run, tmp_path):
    run.recipe()
    for out in (tmp_path, tmp_path / "absent" / "report.html"):
        with pytest.raises(PreheatError, match="Name a file"):
            write(run.path, out)
    assert not (tmp_path / "absent").exists()


def test_text_that_utf_8_cannot_hold_is_replaced(run, tmp_path):
    run.recipe().evaluation(samples=[{"prompt": "half a pair: \ud83d", "text": ""}])
    write(run.path, tmp_path / "report.html")
    assert "half a pair: ?" in (tmp_path / "report.html").read_text("utf-8")


def test_writing_replaces_the_page_at_once(run, tmp_path):
    out = tmp_path / "report.html"
    write(run.recipe().path, out)
    write(run.whole().path, out)
    assert out.read_text("utf-8") == render(run.path)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["report.html"]


def test_a_hundred_thousand_steps_make_a_small_page_quickly(long_run):
    run = long_run.recipe().environment().plan().events()
    records = list(run.records())
    records[60_000]["loss"] = 31.0
    run.lines("metrics.jsonl", records)
    start = time.process_time()
    html = render(run.path)
    seconds = time.process_time() - start
    assert len(html.encode()) < 2_000_000
    assert seconds < 20
    assert "to 31" in html
