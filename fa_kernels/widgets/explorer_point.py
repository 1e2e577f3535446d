"""From the arguments of a widget to settings, and from settings to the point they describe."""

from __future__ import annotations

from fa_kernels.device import device as find_device
from fa_kernels.device import readable_devices
from fa_kernels.figures.point import COMPARED, Point
from fa_kernels.figures.recorded import RecordedRun
from fa_kernels.figures.recorded_numbers import RecordedNumbers
from fa_kernels.problem import DTYPE_FROM_SHORT
from fa_kernels.session import Session, in_use
from fa_kernels.variants import VARIANTS
from fa_kernels.widgets.controls import Settings, checked_settings
from fa_kernels.widgets.headline import HELD, MOVED, TIME, WORK, Headline
from fa_kernels.widgets.setting import SRAM_KIB
from fa_kernels.widgets.text import labels

#: What M starts at, where the device allows it: the fastest recorded budget at the first point.
_DEFAULT_SRAM_KIB = 64


def point_of(settings: Settings) -> Point:
    """The point that the controls describe.

    Raises:
        ValueError: this device cannot launch it; value, limit and remedy.
    """
    dtype, sheet = DTYPE_FROM_SHORT[settings.dtype], find_device(settings.device)
    sparse = (settings.pattern, settings.density)
    return Point.of(settings.N, settings.d, settings.M_kib, dtype, sheet, *sparse)


def explorer_headline(point: Point, run: RecordedRun | None) -> Headline:
    """Quantity -> what each of the two compared variants has of it at a point."""
    text, found = labels("headline"), {}
    for variant in (VARIANTS[name] for name in COMPARED):
        row = run.row(variant.name, point, "latency_ms") if run else None
        numbers = {
            "moved": (point.traffic(variant).total_bytes, MOVED),
            "work": (point.flops(variant), WORK),
            "time": (row.median if row else None, TIME),
            "held": (variant.memory(point.problem).extra_bytes, HELD),
        }
        for name, number in numbers.items():
            found[text[name].format(variant=variant.label)] = number
    return found


def default_device(session: Session) -> str:
    """The sheet of the session's GPU, else of its run's GPU, else the largest GPU of the sheets."""
    sheets = readable_devices()
    names = [session.gpu, session.run.device if session.run else None]
    for name in filter(None, names):
        for sheet in sheets:
            if sheet.is_called(name):
                return sheet.slug
    if not sheets:
        return "h200"  # asking for it gives the sentence that says how to restore the sheets
    return max(sheets, key=lambda sheet: sheet.hbm_capacity_bytes).slug


def opening_settings(
    session: Session,
    N: object,
    d: object,
    M_kib: object,
    dtype: object,
    device: object,
    scale: object = "log",
    pattern: object = "dense",
    density: object = 1 / 4,
) -> Settings:
    """Arguments of a widget as settings; None stands for the session's device, or its largest M.

    Raises:
        ValueError: as `checked_settings`.
    """
    slug = default_device(session) if device is None else device
    if M_kib is not None:
        return checked_settings(N, d, M_kib, dtype, slug, scale, pattern, density)
    for kib in reversed([kib for kib in SRAM_KIB if kib <= _DEFAULT_SRAM_KIB]):
        settings = checked_settings(N, d, kib, dtype, slug, scale, pattern, density)
        try:
            point_of(settings)
        except ValueError:
            continue
        return settings
    return checked_settings(N, d, SRAM_KIB[0], dtype, slug, scale, pattern, density)


def recorded_on(device: str | None, session: Session | None) -> tuple[str, RecordedNumbers]:
    """Slug of the device a widget opens on, and the numbers recorded there.

    None stands for the session's device and for the current session.

    Raises:
        ValueError: no such device; TypeError: `session` is not one.
    """
    used = in_use(session)
    sheet = find_device(default_device(used) if device is None else device)
    return sheet.slug, RecordedNumbers.on(sheet, used.run, used.root)
