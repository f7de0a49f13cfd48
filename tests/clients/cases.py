"""What the client tests share: headers a user sets, a tool, an image, and how long a cancel may take."""

from typing import Any

from pydantic import BaseModel

from tests.support.replies import ToolCall

OURS = {"X-Condenser-Session": "client-tests", "X-Condenser-Strategy": "mask+half-window"}
KEY = "sk-tests"
MODEL = "scripted-1"
CANCELLED_WITHIN = 1.0  # seconds from the client's close to the disconnect the upstream sees

PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJg"
    "gg=="
)
LOOK: list[Any] = [
    {"type": "text", "text": "Was ist das? 这是什么?"},
    {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
]


class Weather(BaseModel):
    """Answer in this form."""

    city: str
    degrees: int


WEATHER_JSON = '{"city":"Zürich","degrees":21}'

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ZURICH = ToolCall("weather", '{"city": "Zürich"}', "call_1")
OSLO = ToolCall("weather", '{"city": "Oslo"}', "call_2")


def user(content: Any) -> Any:
    return {"role": "user", "content": content}


def tool_result(call: ToolCall, content: str) -> Any:
    return {"role": "tool", "tool_call_id": call.id, "content": content}
