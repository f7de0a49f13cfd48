"""Pictures leave a message oldest first, wherever they stand."""

import base64
import struct
import zlib

from strategies.dialects.parts import PICTURES, PIXEL, note_of, without_parts

SHOWN = {"type": "input_image", "image_url": "data:1"}
SCREEN = {"type": "computer_screenshot", "image_url": "data:2"}
MADE = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "AAAA"}


def test_pictures_leave_in_the_order_in_which_they_are_found() -> None:
    message = {"type": "message", "role": "user", "content": [SHOWN, {"type": "input_text", "text": "and"}, SHOWN]}
    assert without_parts(message, PICTURES, 9)[1] == [SHOWN, SHOWN]
    fewer, left = without_parts(message, PICTURES, 1)
    assert (left, fewer["content"][0]) == ([SHOWN], {"type": "input_text", "text": note_of(PICTURES)})
    assert fewer["content"][1:] == message["content"][1:]
    assert without_parts(message, PICTURES, 0) == (message, [])


def test_a_screenshot_and_a_picture_that_was_made_are_pictures() -> None:
    output = {"type": "computer_call_output", "call_id": "c1", "output": SCREEN}
    assert without_parts(output, PICTURES, 9)[1] == [SCREEN]
    pixel = {"type": "computer_screenshot", "image_url": f"data:image/png;base64,{PIXEL}"}
    assert without_parts(output, PICTURES, 9) == ({**output, "output": pixel}, [SCREEN])

    assert without_parts(MADE, PICTURES, 9)[1] == [MADE]
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": note_of(PICTURES)}]}
    assert without_parts(MADE, PICTURES, 9) == (said, [MADE])


def test_what_has_no_bytes_is_no_picture_that_can_leave() -> None:
    for item in ({**MADE, "result": None}, {"type": "computer_call_output", "output": {"type": "computer_screenshot"}}):
        assert without_parts(item, PICTURES, 9) == (item, [])


def test_the_pixel_is_a_whole_png() -> None:
    data, at = base64.b64decode(PIXEL), 8
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    kinds = []
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        kind = data[at + 4 : at + 8 + size]
        assert struct.unpack_from(">I", data, at + 8 + size) == (zlib.crc32(kind),)
        kinds.append(kind[:4])
        at += 12 + size
    assert kinds == [b"IHDR", b"IDAT", b"IEND"]
