from preheat.recipe.locate import key_lines

TEXT = '''\
name = "x" # [not.a.table]
text = """
[fake]
layers = 1
"""
[model]   # comment
layers = 3
"odd key" = 1
ramp = [
  { at = "0", size = 1 },
  "]",
]
a.b = 5
[[stage]]
name = "one"
[stage.extra]
deep = 1
[[stage]]
name = 'it''s'
mix = { web = "[[", code = 2 }
last = 9
'''


def test_lines_of_keys() -> None:
    lines = key_lines(TEXT)
    assert lines["name"] == 1
    assert lines["text"] == 2
    assert "fake" not in lines
    assert "layers" not in lines
    assert lines["model"] == 6
    assert lines["model.layers"] == 7
    assert lines["model.odd key"] == 8
    assert lines["model.ramp"] == 9
    assert lines["model.a.b"] == 13
    assert lines["stage.0.name"] == 15
    assert lines["stage.0.extra.deep"] == 17
    assert lines["stage.1.name"] == 19
    assert lines["stage.1.last"] == 21
