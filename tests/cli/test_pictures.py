"""Pictures become what torchvision makes of them; those that cannot are refused with a reason."""

from __future__ import annotations

import io
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from minidnn.errors import UnsupportedError
from minidnn.pictures import MOST_PIXELS, PictureError, Preparation, extensions, read_picture

PIL = pytest.importorskip("PIL.Image")

KIND = Preparation(40, 32)


def noise(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    """Smooth enough for JPEG, with something at every edge."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (height // 4 + 2, width // 4 + 2, channels), np.uint8)
    fine = coarse.repeat(4, 0).repeat(4, 1)[:height, :width]
    return fine[:, :, 0] if channels == 1 else fine


def with_torchvision(path: Path, preparation: Preparation) -> np.ndarray:
    """The oracle: torchvision's own transform on what its ImageFolder would read."""
    import tests.oracles.torchvision_models  # noqa: F401 (lets torchvision load)

    presets = pytest.importorskip("torchvision.transforms._presets")
    folder = pytest.importorskip("torchvision.datasets.folder")
    mode = pytest.importorskip("torchvision.transforms").InterpolationMode
    made = presets.ImageClassification(
        crop_size=preparation.crop,
        resize_size=preparation.resize,
        interpolation=mode(preparation.interpolation),
    )
    return made(folder.pil_loader(str(path))).numpy()[None]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("resize_crop", [(256, 224), (232, 224), (342, 299), (73, 64), (50, 49)])
@pytest.mark.parametrize("size", [(300, 200), (200, 301), (50, 50), (641, 427), (9, 300), (1, 1)])
def test_every_size_is_prepared_as_by_torchvision(
    size: tuple[int, int], resize_crop: tuple[int, int], tmp_path: Path
) -> None:
    path = tmp_path / "a.png"
    PIL.fromarray(noise(*size)).save(path)
    preparation = Preparation(*resize_crop)
    mine = read_picture(path, preparation)
    assert mine.dtype == np.float32 and mine.flags.c_contiguous
    np.testing.assert_array_equal(mine, with_torchvision(path, preparation))


def test_a_picture_is_resized_as_the_weights_want_it(tmp_path: Path) -> None:
    PIL.fromarray(noise(90, 70)).save(tmp_path / "a.png")
    made = []
    for interpolation in ("bilinear", "bicubic"):
        preparation = Preparation(40, 32, interpolation=interpolation)
        made.append(read_picture(tmp_path / "a.png", preparation))
        np.testing.assert_array_equal(made[-1], with_torchvision(tmp_path / "a.png", preparation))
    assert np.abs(made[0] - made[1]).max() > 0.1
    with pytest.raises(PictureError, match="interpolation='cubic'; valid are 'bilinear' and 'bicu"):
        Preparation(40, 32, interpolation="cubic")


def save(mode: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        PIL.fromarray(noise(50, 70)).convert(mode).save(path)

    return write


def transparent(path: Path) -> None:
    PIL.fromarray(noise(50, 70, 4)).save(path)  # four channels are RGBA


def transparent_palette(path: Path) -> None:
    picture = PIL.fromarray(noise(50, 70)).quantize(16)
    picture.save(path, transparency=3)


def rotated(path: Path) -> None:
    exif = PIL.Exif()
    exif[0x0112] = 6  # a camera held upright
    PIL.fromarray(noise(50, 70)).save(path, exif=exif)


def animated(path: Path) -> None:
    first, *others = (PIL.fromarray(noise(50, 70, seed=seed)) for seed in range(3))
    first.save(path, save_all=True, append_images=others)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("palette.png", save("P")),
        ("palette.gif", save("P")),
        ("transparent_palette.png", transparent_palette),
        ("transparent.png", transparent),
        ("grey.png", save("L")),
        ("grey.jpg", save("L")),
        ("grey_alpha.png", save("LA")),
        ("bits.png", save("1")),
        ("photo.jpg", save("RGB")),
        ("print.jpg", save("CMYK")),
        ("print.tiff", save("CMYK")),
        ("video.jpg", save("YCbCr")),
        ("lab.tiff", save("LAB")),
        ("photo.bmp", save("RGB")),
        ("photo.webp", save("RGB")),
        ("photo.ppm", save("RGB")),
        ("photo.jp2", save("RGB")),
        ("rotated.jpg", rotated),
        ("animated.gif", animated),
        ("animated.png", animated),
        ("pages.tiff", animated),
    ],
)
def test_every_kind_is_read_as_by_torchvision(
    name: str, write: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / name
    write(path)
    np.testing.assert_array_equal(read_picture(path, KIND), with_torchvision(path, KIND))


@pytest.mark.parametrize("name", ["a.png", "a.tiff", "a.pgm"])
def test_grey_of_16_bits_is_the_same_picture_with_8(name: str, tmp_path: Path) -> None:
    small = noise(50, 70, 1)
    low = np.random.default_rng(1).integers(0, 256, small.shape, np.uint16)
    wide = small.astype(np.uint16) << 8 | low
    deep, plain = tmp_path / name, tmp_path / "plain.png"
    if name.endswith("pgm"):
        head = b"P5 70 50 65535\n"
        deep.write_bytes(head + wide.astype(">u2").tobytes())
    else:
        PIL.fromarray(wide).save(deep)
    PIL.fromarray(small).save(plain)
    np.testing.assert_array_equal(read_picture(deep, KIND), read_picture(plain, KIND))


def test_colours_of_16_bits(tmp_path: Path) -> None:
    """Pillow cannot write these: a PNG by hand."""
    small = noise(50, 70)
    rows = (small.astype(">u2") << 8 | 0x7F).reshape(50, -1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    lines = b"".join(b"\0" + row.astype(">u2").tobytes() for row in rows)
    path, plain = tmp_path / "deep.png", tmp_path / "plain.png"
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", 70, 50, 16, 2, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(lines))
        + chunk(b"IEND", b"")
    )
    PIL.fromarray(small).save(plain)
    np.testing.assert_array_equal(read_picture(path, KIND), read_picture(plain, KIND))


def test_grey_networks_get_ink_from_0_to_1(tmp_path: Path) -> None:
    path, pixels = tmp_path / "a.png", noise(8, 8, 1)
    PIL.fromarray(pixels).save(path)
    found = read_picture(path, Preparation(8, 8, channels=1))
    np.testing.assert_array_equal(found[0, 0], pixels.astype(np.float32) / 255)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("text.png", b"no picture", "cannot be read: cannot identify image file"),
        ("empty.jpg", b"", "cannot be read: cannot identify image file"),
        ("a.eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "is EPS, which would be"),
    ],
)
def test_what_is_no_picture_is_refused(
    name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(PictureError) as caught:
        read_picture(path, KIND)
    assert str(caught.value).startswith(f"picture {path} {message}")


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PictureError, match=r"absent.png cannot be read: No such file"):
        read_picture(tmp_path / "absent.png", KIND)
    with pytest.raises(PictureError, match=r"is not a regular file"):
        read_picture(tmp_path, KIND)
    with pytest.raises(PictureError, match=r"cannot be read: .*embedded null"):
        read_picture("a\0b", KIND)


def png_of(width: int, height: int) -> bytes:
    stream = io.BytesIO()
    PIL.new("L", (1, 1)).save(stream, "PNG")
    data = bytearray(stream.getvalue())
    data[16:24] = struct.pack(">II", width, height)
    data[29:33] = struct.pack(">I", zlib.crc32(bytes(data[12:29])))
    return bytes(data)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ((100_000, 100_000), "exceeds limit of"),  # Pillow's own check
        ((1, 80_000_000), "resized would have 128,000,000,000 pixels"),
        ((3_000_000, 2), "resized would have 2,400,000,000 pixels"),
    ],
)
def test_decompression_bombs_are_refused_before_they_go_off(
    size: tuple[int, int], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(png_of(*size))
    with pytest.raises(PictureError, match=f"picture .*bomb.png .*{message}"):
        read_picture(path, KIND)


def test_the_limit_holds_when_pillows_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PIL, "MAX_IMAGE_PIXELS", None)
    path = tmp_path / "bomb.png"
    path.write_bytes(png_of(100_000, 100_000))
    with pytest.raises(PictureError, match=f"has 10,000,000,000 pixels; .* {MOST_PIXELS:,}"):
        read_picture(path, KIND)


def test_pixels_without_a_known_range_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tiff"
    PIL.fromarray(np.zeros((8, 8), np.float32)).save(path)
    with pytest.raises(PictureError, match=r"has floating-point pixels, .* convert it first"):
        read_picture(path, KIND)
    PIL.fromarray(np.full((8, 8), 70_000, np.int32)).save(path)
    with pytest.raises(PictureError, match=r"has 32-bit pixels from 70000 to 70000; valid"):
        read_picture(path, KIND)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "suffix", ["png", "jpg", "gif", "tiff", "webp", "bmp", "jp2", "ico", "tga"]
)
def test_damaged_files_give_a_picture_or_an_error(suffix: str, tmp_path: Path) -> None:
    """Cut off anywhere, or with bytes replaced: never another exception, never a warning."""
    whole, path = tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}"
    PIL.fromarray(noise(32, 32)).save(whole)
    data = whole.read_bytes()
    random = np.random.default_rng(0)
    refused = 0
    for i in range(60):
        changed = bytearray(data)
        if i % 3 == 0:
            changed = changed[: random.integers(0, len(data))]
        else:
            for _ in range(1 + i % 5):
                changed[random.integers(0, min(len(data), 400))] = random.integers(0, 256)
        path.write_bytes(changed)
        try:
            assert read_picture(path, KIND).shape == (1, 3, 32, 32)
        except PictureError as error:
            refused += 1
            assert str(path) in str(error) and len(str(error).splitlines()) == 1
    assert refused > 5


def test_pillows_warnings_are_not_shown(tmp_path: Path) -> None:
    """Warnings are errors here; Pillow warns of pictures half as large as it refuses."""
    path = tmp_path / "large.png"
    path.write_bytes(png_of(10_000, 10_000))
    with pytest.raises(PictureError, match=r"cannot be read: .*(truncated|broken|Truncated)"):
        read_picture(path, KIND)


def test_preparations_that_cannot_be() -> None:
    with pytest.raises(PictureError, match="crop=33 is larger than resize=32"):
        Preparation(32, 33)
    with pytest.raises(PictureError, match="channels=4; valid are 3"):
        Preparation(32, 32, 4)


def test_extensions() -> None:
    assert {".jpg", ".jpeg", ".png", ".webp", ".gif"} <= extensions()
    assert not {".eps", ".pdf", ".txt", ""} & extensions()


def test_without_pillow_the_error_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UnsupportedError, match=r"a.png: Pillow is not installed \(pip install"):
        read_picture(tmp_path / "a.png", KIND)
