"""The app's Python side: one setting for explorer and story, a link that follows, bad arguments."""

from __future__ import annotations

from urllib.parse import parse_qs

import pytest

import fa_kernels as fa
from fa_kernels.widgets.app.link import VIEWS
from fa_kernels.widgets.app.presenter import App, app
from fa_kernels.widgets.text import labels


@pytest.fixture
def shown() -> App:
    return app(session=fa.session(backend="numpy"))


def told(shown: App) -> dict[str, str]:
    return {key: values[0] for key, values in parse_qs(shown.bar.query).items()}


def test_the_link_follows_what_is_done(shown: App) -> None:
    shown.explorer.controls.seqlen.value = 16384
    shown.explorer.controls.apply_preset("BERT-large 512")
    shown.stepper.step = 3
    shown.bar.view, shown.bar.theme, shown.bar.size = "stepper", "dark", 130
    assert told(shown) == {
        "view": "stepper", "N": "512", "d": "64", "M_kib": "64", "dtype": "fp16", "device": "h200",
        "scale": "log", "step": "3", "theme": "dark", "size": "130",
    }  # fmt: skip


def test_the_story_shows_the_explorers_point_once_it_is_looked_at(shown: App) -> None:
    assert not shown.story.spec, "drawn before anybody looks: the first figure waits for it"
    shown.bar.view = "story"
    assert "N = 4096" in shown.story.alt
    shown.explorer.controls.seqlen.value = 8192
    assert "N = 8192" in shown.story.alt
    assert shown.story.setting.N == 8192


def test_a_refused_setting_fades_the_story_too(shown: App) -> None:
    shown.bar.view = "story"
    shown.explorer.controls.device.value = "t4"
    assert shown.explorer.message.value
    assert shown.story.stale
    shown.explorer.controls.apply_remedy()
    assert not shown.story.stale


def test_every_view_has_a_name_and_a_key() -> None:
    page = labels("app")["page"]
    assert set(VIEWS) <= page.keys()
    keys = [key for line in page["keys"] for key in line["keys"]]
    assert [str(i + 1) for i in range(len(VIEWS))] == keys[: len(VIEWS)]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("bad", [{"view": "poem"}, {"N": 0}, {"dtype": "int8"}, {"M_kib": 0}])
def test_bad_arguments_are_refused(bad: dict) -> None:
    with pytest.raises(ValueError, match=r"\w+ = "):
        app(**bad)


def test_what_the_address_says_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_SOFTWARE", "voila/0.5.13")
    monkeypatch.setenv("QUERY_STRING", "view=stepper&N=1024&size=huge")
    opened = app(N=2048, d=128)
    assert opened.bar.view == "stepper"
    assert opened.explorer.point.seqlen == 1024
    assert opened.explorer.point.problem.head_dim == 128
    assert "size" in " ".join(opened.bar.notes)
