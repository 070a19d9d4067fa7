"""The page in a real browser: it parses, lays out and draws at the widths of a screen and of a phone."""

import json
import shutil
import subprocess

import pytest

from preheat.report import write

BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium, google-chrome or chromium-browser on PATH")
QUIET = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
MEASURE = """<!doctype html><html><body>
<iframe id="page" src="report.html" style="width:{width}px;height:2000px;border:0"></iframe><pre id="out"></pre>
<script>
document.getElementById("page").onload = event => {{
  const page = event.target.contentDocument;
  const width = page.documentElement.clientWidth;
  const curves = [...page.querySelectorAll("svg.chart path")].map(path => path.getBoundingClientRect());
  document.getElementById("out").textContent = JSON.stringify({{
    overflow: page.documentElement.scrollWidth - width,
    curves: curves.length,
    beyond: curves.filter(curve => curve.left < 0 || curve.right > width).length,
    requests: page.defaultView.performance.getEntriesByType("resource").length
  }});
}};
</script></body></html>"""


def browse(profile, url, *options):
    command = [BROWSER, "--headless", "--no-sandbox", *QUIET, f"--user-data-dir={profile}", *options, "--dump-dom", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@needs_browser
def test_the_page_renders(run, tmp_path):
    out = tmp_path / "report.html"
    write(run.whole().path, out)
    dom = browse(tmp_path / "profile", out.as_uri())
    assert "<h1>tiny</h1>" in dom
    # Loss, held-out loss, four of the schedule, gradient norm, throughput and MFU.
    assert dom.count('<svg class="chart"') == 9
    assert dom.rstrip().endswith("</html>")


@needs_browser
@pytest.mark.parametrize("width", [1200, 400])
def test_nothing_sticks_out(run, tmp_path, width):
    write(run.whole().path, tmp_path / "report.html")
    (tmp_path / "measure.html").write_text(MEASURE.format(width=width))
    dom = browse(tmp_path / "profile", (tmp_path / "measure.html").as_uri(), "--allow-file-access-from-files", "--virtual-time-budget=5000")
    found = json.loads(dom.split('<pre id="out">')[1].split("</pre>")[0])
    assert found["curves"] >= 14
    assert (found["overflow"], found["beyond"], found["requests"]) == (0, 0, 0)
