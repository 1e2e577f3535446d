"""What the three views of a setting share: they follow, or say why not and fade what is left."""

from __future__ import annotations

from typing import Any

import pytest

from fa_kernels.session import Session
from fa_kernels.widgets.choice import Choice
from fa_kernels.widgets.crossing import crossing
from fa_kernels.widgets.loop_order import loop_order
from fa_kernels.widgets.setting import Setting
from fa_kernels.widgets.setting_view import SettingView
from fa_kernels.widgets.traffic_ways import traffic_ways

VIEWS = {view.__name__: view for view in (crossing, loop_order, traffic_ways)}


@pytest.fixture(params=list(VIEWS))
def view(request: pytest.FixtureRequest, bare: Session) -> SettingView:
    made: SettingView = VIEWS[request.param](session=bare)
    return made


def faded(view: SettingView) -> list[bool]:
    htmls = (view.sentence, view.table)
    return [view.figure.stale, *("falab-stale" in shown._dom_classes for shown in htmls)]


def test_it_follows_its_controls(view: SettingView) -> None:
    before = view.sentence.value, view.table.value, view.figure.spec
    view.head_dim.value = 112  # between two stops
    assert view.setting.d == 112
    after = view.sentence.value, view.table.value, view.figure.spec
    assert all(a != b for a, b in zip(before, after, strict=True))
    assert f"data-fa-{view.mark}" in view.sentence.value
    assert isinstance(view.dtype, Choice)


@pytest.mark.parametrize("kind", [ValueError, ZeroDivisionError])
def test_what_cannot_be_computed_is_said_and_the_rest_fades(
    view: SettingView, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = view.sentence.value, view.table.value

    def refuse(self: Setting, device: str) -> Any:
        raise kind("no such tiles: lower M.")

    monkeypatch.setattr(Setting, "point", refuse)
    view.head_dim.value = 128
    assert "no such tiles" in view.message.value and 'role="alert"' in view.message.value
    assert ("went wrong" in view.message.value) == (kind is not ValueError)
    assert (view.sentence.value, view.table.value) == before
    assert faded(view) == [True] * 3
    monkeypatch.undo()
    view.head_dim.value = 32
    assert view.message.value == "" and faded(view) == [False] * 3
